"""Share requests with other processes: residuals that remote ControlNets stream to the engine (Katz, section 5), and
halves of the guidance (section 7: latent parallelism), for other workers and from them."""

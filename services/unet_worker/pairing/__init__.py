"""Share requests between two workers (Katz, section 7: latent parallelism): compute halves for other workers, and
request halves from them."""

"""Pictures that two workers paint (Katz, section 7: latent parallelism): halves computed for others, and asked of
them."""

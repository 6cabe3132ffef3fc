"""Watch quality online: generate sampled hits again from noise while idle, and compare."""

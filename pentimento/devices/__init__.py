"""Claims on GPUs."""

"""Compute residuals on one thread, and hold the inputs of the computation."""

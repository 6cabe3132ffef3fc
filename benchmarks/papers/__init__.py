"""Hold the papers' constants, and their systems and figures as simulations."""

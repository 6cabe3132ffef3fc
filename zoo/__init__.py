"""The zoo: tiny text-to-image models that are trained here, from scratch, on scenes drawn by code."""

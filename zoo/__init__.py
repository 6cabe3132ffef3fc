"""Train tiny text-to-image models from scratch, on scenes drawn by code."""

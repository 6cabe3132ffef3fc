"""Lookups: search, the rows of entries found, and the choice of a start."""

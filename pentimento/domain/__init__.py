"""Frozen value types, errors and the clock. Standard library only."""

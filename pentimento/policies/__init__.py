"""Decide by pure functions: a context in, a decision out. No clock, no randomness, no input or output."""

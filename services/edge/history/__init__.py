"""Samples of the suite for the console's charts."""

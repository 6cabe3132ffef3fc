"""Measure the exported models on held-out scenes: `python -m zoo.evaluate`."""

"""What the exported models are worth on held-out scenes: `python -m zoo.evaluate`."""

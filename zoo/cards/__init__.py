"""The model cards beside the exported weights: `python -m zoo.cards`."""

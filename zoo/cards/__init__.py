"""Write the model cards next to the exported weights: `python -m zoo.cards`."""

"""Export checkpoints to directories that stock libraries load: `python -m zoo.export`."""

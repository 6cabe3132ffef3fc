"""LoRAs that the worker paints with: which there are, and their loads."""

"""Hold the LoRAs that the worker generates with, and load them."""

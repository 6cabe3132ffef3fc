"""Costs of models on devices and what is made there: measured, recorded, emulated; and claims on GPUs."""

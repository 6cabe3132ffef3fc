"""A worker that stands for a device that is not here. Starts without torch."""

"""A discriminator that reads the scores which emulated images carry. Starts without torch."""

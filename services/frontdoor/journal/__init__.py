"""The journal: what is written to it, read back after a start, kept, and whose it is."""

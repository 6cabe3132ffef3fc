"""The device: which one, its precision, memory, energy and busy share."""

"""Choose the device and its precision, and measure its memory, energy and busy share."""

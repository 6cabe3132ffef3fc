"""Commands that the lab adds to `pentimento`."""

"""Pentimento: serving text-to-image diffusion models that reuse what was already painted."""

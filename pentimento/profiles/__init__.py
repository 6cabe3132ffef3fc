"""Profiles: measured costs of models, and how much reuse, skipped steps and lateness they bear."""

"""Run attempts: validate, hold, execute them from their start to the encoded image."""

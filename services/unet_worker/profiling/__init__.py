"""Measurements of models: costs, and how much reuse, skipped steps, hand-overs and late LoRAs they bear."""

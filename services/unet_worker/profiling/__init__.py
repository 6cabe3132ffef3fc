"""Measure models: costs, and the effect of reuse, skipped steps, hand-overs and late LoRAs."""

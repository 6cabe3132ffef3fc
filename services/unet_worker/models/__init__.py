"""Describe, load, warm up, measure and switch models as the plan requires."""

"""Measure `benchmarks.zoo_phenomena`'s parts, a curve each."""

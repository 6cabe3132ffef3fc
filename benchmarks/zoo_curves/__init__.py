"""The parts of `benchmarks.zoo_phenomena`, a curve each."""

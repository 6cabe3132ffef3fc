"""Measure the suite's figures, a script per table: `python -m benchmarks.NAME [--quick] [--out FILE]`."""

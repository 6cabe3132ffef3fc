"""One script a table: `python -m benchmarks.NAME [--quick] [--out FILE]`; results with the machine they ran on."""

"""Run suites for benchmarks: emulated, paced, instant, restarted; load them and read their processes."""

"""The console: pages under `/`, its data under `/console/data`, samples for its charts."""

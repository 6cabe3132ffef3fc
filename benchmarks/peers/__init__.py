"""Serve and call the peers that benchmarks compare with: LitServe, diffusers, FastAPI, bare servers."""

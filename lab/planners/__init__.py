"""Baselines, ablations and relatives of the systems that the suite plans by."""

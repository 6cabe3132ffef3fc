"""Where a request starts, which models paint it, and what it leaves in the cache."""

"""Read the lab's files: TOML documents with positions."""

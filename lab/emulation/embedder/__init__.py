"""An embedder that finds emulated images by their prompts."""

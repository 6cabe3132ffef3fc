"""The cache of latents and images: lookup, and writing as reserve, upload, commit."""

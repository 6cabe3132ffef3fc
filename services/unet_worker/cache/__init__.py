"""Read donors from the cache for attempts, and store their objects under grants."""

"""What attempts read from the cache, and what they may write to it."""

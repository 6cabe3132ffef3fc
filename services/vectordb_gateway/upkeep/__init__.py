"""Background work: indexing, maintenance, healing, and calls of stores that may hang."""

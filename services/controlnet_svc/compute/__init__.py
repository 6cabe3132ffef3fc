"""The one thread that computes, and what it computes with."""

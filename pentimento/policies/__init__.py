"""Pure decisions: a function of its context that returns a decision. No clock, no randomness, no input or output."""

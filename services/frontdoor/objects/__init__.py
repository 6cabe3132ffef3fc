"""Pictures and inputs in the object store, or in the journal while it is away."""

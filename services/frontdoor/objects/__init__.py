"""Store images and inputs in the object store, or in the journal while the store is away."""

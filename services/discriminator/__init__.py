"""The discriminator: confidence in the images of a light model (DiffServe)."""

"""The discriminator: how confident one may be of a light model's picture (DiffServe)."""

"""Diffusion models: checkpoints, families, schedulers as pure functions, and the step engine. torch, never grpc."""

"""Run diffusion models: checkpoints, families, schedulers as pure functions, the step engine. torch, never grpc."""

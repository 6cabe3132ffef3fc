"""Train tiny text-to-image models from scratch, on scenes drawn by code."""

import pentimento  # noqa: F401 # before diffusers and transformers, which import torchvision

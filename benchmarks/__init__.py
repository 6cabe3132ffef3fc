"""Measure the suite's figures, a script per table: `python -m benchmarks.NAME [--quick] [--out FILE]`."""

import pentimento  # noqa: F401 # before diffusers and transformers, which import torchvision

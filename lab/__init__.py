"""Study and measure the suite: the simulator, workloads, runs and their reports, studies of prompt logs, fixtures."""

import pentimento  # noqa: F401 # before diffusers and transformers, which import torchvision

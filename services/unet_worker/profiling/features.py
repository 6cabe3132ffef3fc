"""Measure reused deep features: as skipped steps, but the other steps run the network's outer layers."""

from functools import partial

from pentimento.profiles.document import ProfileKind
from services.unet_worker.profiling import steps

measure = partial(steps.measure, kind=ProfileKind.FEATURES)

"""Models and cascades that may be registered."""

import hashlib
from dataclasses import replace
from itertools import pairwise

from pentimento.domain.fleet import ModelCost
from pentimento.domain.models import CascadeVariant, DeviceCost, Handover, ModelFile, ModelVariant, digest_of
from pentimento.profiles.document import profiles_to_json
from tests.support.profiles import HANDOVER_PROFILE, changed

FILES = (
    ModelFile("model_index.json", "a" * 64, 10),
    ModelFile("unet/diffusion_pytorch_model.safetensors", "b" * 64, 1000),
)
DIGEST = digest_of(FILES)
DISCRIMINATOR_DIGEST = "sha256:" + "d" * 64


def variant(name: str, *costs: tuple[str, float]) -> ModelVariant:
    """Return a model with `costs`: a device, and the seconds of an image there."""
    told = tuple(DeviceCost(device, ModelCost(name, ((1, run_s),))) for device, run_s in costs)
    return ModelVariant(name, DIGEST, "stable_diffusion", "Apache-2.0", FILES, told)


def variant_of_its_own(name: str) -> ModelVariant:
    """Return a variant with weights, and so a digest, of this name alone."""
    files = (FILES[0], replace(FILES[1], sha256=hashlib.sha256(name.encode()).hexdigest()))
    return replace(variant(name), files=files, digest=digest_of(files))


def handover_profile(light: ModelVariant, heavy: ModelVariant) -> str:
    """Return a profile that allows a share of 0.2 by its own rule, and of 0.1 if every image must keep alpha."""
    return profiles_to_json(changed(HANDOVER_PROFILE, reference_digest=light.digest, model_digest=heavy.digest))


def unstated(cascade: CascadeVariant) -> CascadeVariant:
    """Return the same cascade without reuse shares."""
    return replace(cascade, handovers=tuple(replace(each, reuse_share=0.0) for each in cascade.handovers))


def cascade(*models: str, shares: tuple[float, ...] = (0.0, 0.3, 1.0)) -> CascadeVariant:
    """Return a cascade with the same f(t) between any two models."""
    thresholds = tuple(index / (len(shares) - 1) for index in range(len(shares)))
    handovers = tuple(
        Handover(f"{light}>{heavy}", DISCRIMINATOR_DIGEST, thresholds, shares, 0.25)
        for light, heavy in pairwise(models)
    )
    return CascadeVariant(models, handovers)

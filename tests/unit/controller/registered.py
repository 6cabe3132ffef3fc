"""Models and cascades that may be registered."""

from itertools import pairwise

from pentimento.domain.fleet import ModelCost
from pentimento.domain.models import CascadeVariant, DeviceCost, Handover, ModelFile, ModelVariant
from services.controller.models.checks import digest_of

FILES = (
    ModelFile("model_index.json", "a" * 64, 10),
    ModelFile("unet/diffusion_pytorch_model.safetensors", "b" * 64, 1000),
)
DIGEST = digest_of(FILES)
DISCRIMINATOR_DIGEST = "sha256:" + "d" * 64


def variant(name: str, *costs: tuple[str, float]) -> ModelVariant:
    """`costs`: a device, and the seconds of a picture there."""
    told = tuple(DeviceCost(device, ModelCost(name, ((1, run_s),))) for device, run_s in costs)
    return ModelVariant(name, DIGEST, "stable_diffusion", "Apache-2.0", FILES, told)


def cascade(*models: str, shares: tuple[float, ...] = (0.0, 0.3, 1.0)) -> CascadeVariant:
    """f(t) is the same between any two."""
    thresholds = tuple(index / (len(shares) - 1) for index in range(len(shares)))
    handovers = tuple(
        Handover(f"{light}>{heavy}", DISCRIMINATOR_DIGEST, thresholds, shares, 0.25)
        for light, heavy in pairwise(models)
    )
    return CascadeVariant(models, handovers)

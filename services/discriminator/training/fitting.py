"""Train a network and its prompt head on pairs, calibrate them, and measure them against baselines."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.discriminator_files import discriminator_files
from pentimento.diffusion.discriminators.calibration import Array, aurocs, fit_calibration, resampling_weights
from pentimento.diffusion.discriminators.head_fitting import (
    HIDDEN_WIDTH,
    CaptionedImages,
    HeadData,
    calibrated,
    fit_agreement,
    train_head,
)
from pentimento.diffusion.discriminators.network_training import (
    LAST_CHANNEL,
    NARROW_ARCHITECTURE,
    STAGES,
    MatchingNetwork,
    NetworkPlan,
    PairImages,
    as_pixels,
    features_of,
    train_matching,
)
from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadRecord, HeadShape
from pentimento.diffusion.discriminators.scoring_network import read_weights
from pentimento.diffusion.discriminators.torchvision_networks import named_efficientnet, narrow_efficientnet
from pentimento.diffusion.discriminators.writing import LABELS, halved, write_head, write_torchvision
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from services.discriminator.training.pairs import CALIBRATING, FOLDS, MEASURING, PairTensors
from services.discriminator.training.settings import NetworkChoice

TRAINING = tuple(fold for fold in range(FOLDS) if fold not in (*CALIBRATING, *MEASURING))
CONFIDENCE = 0.95
NEW, PROMPT, CLIP_SCORE, IN_SERVICE, RANDOM = (
    "this discriminator",
    "its prompt alone",
    "CLIPScore of the light image",
    "the discriminator in service",
    "random",
)


@dataclass(frozen=True)
class Ranking:
    """Hold a router's AUROC for 'light is as good', with the bounds of its interval at CONFIDENCE."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Array, chance_width: float) -> "Ranking":
        """Return the first value, of all rows, with the interval of the others, which are resamples. The interval
        reaches at least `chance_width` to both sides: resamples of a few rows hardly differ."""
        tail = (1.0 - CONFIDENCE) / 2.0
        value = float(values[0])
        low, high = (float(bound) for bound in np.nanquantile(values[1:], (tail, 1.0 - tail)))
        return cls(value, max(min(low, value - chance_width), 0.0), min(max(high, value + chance_width), 1.0))


@dataclass(frozen=True)
class Fitted:
    """Hold a trained network in its stored precision, with the head and its record, and the routers' rankings on
    prompts that neither trained nor calibrated them."""

    network: nn.Module
    head: HeadNetwork
    record: HeadRecord
    rankings: dict[str, Ranking]


def begun(choice: NetworkChoice, start: Path | None) -> nn.Module:
    """Return an untrained network, or that of a discriminator's directory. Raises InvalidArgument if the directory has
    another network, and BadCheckpoint for an invalid one."""
    network: Any = (
        narrow_efficientnet(STAGES, LAST_CHANNEL, len(LABELS))
        if choice is NetworkChoice.NARROW
        else named_efficientnet(choice.value, len(LABELS))
    )
    if start is not None:
        files = discriminator_files(start, accept_other_digest=True)
        try:
            network.load_state_dict(read_weights(list(files.weights)))
        except RuntimeError as error:
            why = " ".join(str(error).split())[:160]
            raise InvalidArgument.of("--start", f"must be a discriminator with {choice.value}: {why}") from None
    found: nn.Module = network
    return found


def fit(
    network: Any,
    pairs: PairTensors,
    encoder_digest: str,
    plan: NetworkPlan,
    device: torch.device,
    report: Callable[[int, float], None] = lambda step, loss: None,
    cascade: str = "",
) -> Fitted:
    """Train, calibrate and measure; the record names the cascade. Raises FailedPrecondition ONE_KIND_OF_PAIRS if a part
    of the pairs has no light image that is as good, or no other."""
    check_both_kinds(pairs)
    learnt = pairs.of_folds(TRAINING)
    if plan.steps:
        model = MatchingNetwork(network, pairs.prompts.shape[1])
        images = PairImages(pairs.light[learnt], pairs.heavy[learnt], pairs.prompts[learnt])
        network = train_matching(model, images, plan, device, report)
    network.load_state_dict(halved(network.state_dict()))
    data = HeadData(
        features_of(network, pairs.light, device),
        pairs.prompts,
        pairs.light_scores,
        pairs.heavy_scores,
        pairs.weights,
    )
    shown = CaptionedImages(features_of(network, pairs.heavy[learnt], device), pairs.prompts[learnt])
    head = train_head(data.rows(learnt), shown)
    kept = data.rows(pairs.of_folds(CALIBRATING))
    fit_agreement(head, kept)
    head.load_state_dict(halved(head.state_dict()))
    shape = HeadShape(data.features.shape[1], data.prompts.shape[1], HIDDEN_WIDTH)
    record = calibrated(head, kept, HeadRecord(**asdict(shape), encoder_digest=encoder_digest))
    measured = pairs.of_folds(MEASURING)
    rankings = rankings_of(head, data.rows(measured), pairs.confidences[measured])
    new = rankings[NEW]
    auroc = round(new.value, 4), round(new.low, 4), round(new.high, 4)
    record = replace(record, auroc=auroc, cascade=cascade)
    return Fitted(network, head, record, rankings)


def check_both_kinds(pairs: PairTensors) -> None:
    """Raise FailedPrecondition ONE_KIND_OF_PAIRS unless each part has light images that are as good, and others."""
    as_good = pairs.light_scores >= pairs.heavy_scores
    for folds, use in ((TRAINING, "trains"), (CALIBRATING, "calibrates"), (MEASURING, "measures")):
        part = as_good[pairs.of_folds(folds)]
        if len(part) == int(part.sum()) or not bool(part.any()):
            message = f"of {len(part)} pairs in the part that {use}, {int(part.sum())} have a light image as good"
            raise FailedPrecondition("ONE_KIND_OF_PAIRS", f"{message}: more pairs are needed")


def chance_width(as_good: NDArray[np.bool_], weights: Array) -> float:
    """Return half the interval, at CONFIDENCE, of the AUROC of a router that knows nothing (Mann and Whitney, 1947).

    Weighted rows count by their effective number (Kish)."""
    counts = [float(part.sum() ** 2 / (part**2).sum()) for part in (weights[as_good], weights[~as_good])]
    deviation = math.sqrt((sum(counts) + 1.0) / (12.0 * math.prod(counts)))
    return NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0) * deviation


@torch.no_grad()
def rankings_of(head: HeadNetwork, data: HeadData, in_service: Tensor) -> dict[str, Ranking]:
    """Return the AUROC of the head and of baselines on rows that it has not seen; `in_service` has the confidences (n,)
    of the discriminator that served."""
    routers: dict[str, Tensor] = {
        NEW: head(data.features, data.prompts),
        PROMPT: head.foresee(data.prompts),
        CLIP_SCORE: data.light,
        IN_SERVICE: in_service,
        RANDOM: torch.rand(len(data.light), generator=torch.Generator().manual_seed(0)),
    }
    own, as_good = data.weights.double().numpy(), data.as_good.numpy()
    weights, least = resampling_weights(len(data.light)) * own, chance_width(as_good, own)
    with np.errstate(invalid="ignore", divide="ignore"):
        # A resample without both kinds of images has no ranking.
        return {
            name: Ranking.of(aurocs(scores.double().numpy(), as_good, weights), least)
            for name, scores in routers.items()
        }


@torch.no_grad()
def write(fitted: Fitted, pairs: PairTensors, choice: NetworkChoice, size_px: int, folder: Path) -> None:
    """Write the discriminator's directory, which must not exist. Raises BadCheckpoint if the training diverged."""
    network: Any = fitted.network
    rows = pairs.of_folds(CALIBRATING)
    margins = []
    for images in (pairs.heavy[rows], pairs.light[rows]):
        logits = torch.cat([network(as_pixels(part)) for part in images.split(64)]).double()
        margins.append(logits[:, LABELS.index("real")] - logits[:, LABELS.index("generated")])
    found = torch.cat(margins)
    if not bool(found.isfinite().all()):
        raise BadCheckpoint(f"{folder}: the training diverged, use another --seed or more pairs")
    real = torch.arange(len(found)) < len(margins[0])
    line = fit_calibration(found, real, torch.ones(len(real)))
    architecture = NARROW_ARCHITECTURE if choice is NetworkChoice.NARROW else {"architecture": choice.value}
    folder.mkdir(parents=True)
    record = {"slope": line.slope, "intercept": line.intercept, "method": "platt", "real_against": "light"}
    write_torchvision(network, folder, record, architecture, size_px)
    write_head(fitted.head, fitted.record, folder, folder)

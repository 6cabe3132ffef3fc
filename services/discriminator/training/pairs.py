"""Read the pairs that frontdoors kept in the object store, and divide them by their prompts."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pentimento.api.discriminator.v1 import discriminator_service_pb2 as pb
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.domain.online_quality import ComparedPair
from pentimento.images.decoding import decode, resized
from pentimento.stores.objects import ObjectStore
from pentimento.stores.objects.pair_keys import cascade_prefix, reference_of
from pentimento.wire.codec import from_bytes

logger = logging.getLogger(__name__)

FOLDS = 8
# One fold calibrates, two measure, the others train.
CALIBRATING, MEASURING = (5,), (6, 7)


def read_pairs(store: ObjectStore, cascade: str, least: int, most: int) -> list[ComparedPair]:
    """Return the newest pairs of a cascade, at most `most`, newest first, all of the newest pair's models and encoder.

    Unreadable pairs are skipped. Raises FailedPrecondition TOO_FEW_PAIRS for fewer than `least`, and StoreUnavailable.
    """
    found: list[ComparedPair] = []
    for key in sorted(store.keys(cascade_prefix(cascade)), reverse=True):
        pair = _read(store, key)
        if pair is None or (found and _kind(pair) != _kind(found[0])):
            continue
        found.append(pair)
        if len(found) == most:
            break
    if len(found) < least:
        message = (
            f"{cascade} has {len(found)} compared pairs of its present models and encoder, training takes {least}: let "
            "the suite serve with the cascade, and with an encoder of images"
        )
        raise FailedPrecondition("TOO_FEW_PAIRS", message)
    return found


def _read(store: ObjectStore, key: str) -> ComparedPair | None:
    reference = reference_of(key)
    if reference is None:
        return None
    try:
        return from_bytes(store.get(reference), ComparedPair, pb.ComparedPair)
    except InvalidArgument as error:
        logger.warning("a compared pair is unreadable", extra={"reason": error.reason})
    except PentimentoError as error:
        # A frontdoor deletes the oldest pairs meanwhile.
        logger.info("a compared pair is gone", extra={"reason": error.reason})
    return None


def _kind(pair: ComparedPair) -> tuple[str, str, str]:
    return pair.light_digest, pair.heavy_digest, pair.prompt.encoder_digest


@dataclass(frozen=True)
class PairTensors:
    """Hold pairs as tensors: uint8 images (n, 3, size, size), prompts (n, width), and (n,) each: scores, confidences,
    weights and folds."""

    light: Tensor
    heavy: Tensor
    prompts: Tensor
    light_scores: Tensor
    heavy_scores: Tensor
    confidences: Tensor
    weights: Tensor
    folds: Tensor

    def of_folds(self, folds: Sequence[int]) -> Tensor:
        """Return which rows are in the folds, bool (n,)."""
        return torch.isin(self.folds, torch.tensor(folds))


def as_tensors(pairs: Sequence[ComparedPair], size_px: int) -> PairTensors:
    """Return the pairs as tensors, images squeezed into squares as in service; pairs that do not decode are skipped.

    A pair's weight is the inverse of the share of such images that were compared. All pairs of a prompt are in one
    fold.
    """
    decoded = list(_decoded(pairs, size_px))
    kept = [pair for pair, _ in decoded]
    images = torch.stack([both for _, both in decoded])
    prompts = np.stack([np.frombuffer(pair.prompt.values, "<f4") for pair in kept]).astype(np.float32)
    return PairTensors(
        images[:, 0],
        images[:, 1],
        torch.from_numpy(prompts),
        torch.tensor([pair.light_score for pair in kept], dtype=torch.float64),
        torch.tensor([pair.heavy_score for pair in kept], dtype=torch.float64),
        torch.tensor([pair.confidence for pair in kept], dtype=torch.float64),
        torch.tensor([1.0 / min(max(pair.sampled_share, 1e-3), 1.0) for pair in kept], dtype=torch.float64),
        torch.tensor([fold_of(pair) for pair in kept]),
    )


def fold_of(pair: ComparedPair) -> int:
    """Return the fold of a pair's prompt."""
    return hashlib.sha256(pair.prompt.values).digest()[0] % FOLDS


def _decoded(pairs: Sequence[ComparedPair], size_px: int) -> Iterator[tuple[ComparedPair, Tensor]]:
    def pixels(image: Image.Image) -> Tensor:
        small = resized(image, (size_px, size_px), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()

    for number, pair in enumerate(pairs):
        try:
            both = [
                decode(data, f"pairs[{number}].{name}", pixels)
                for name, data in (("light", pair.light), ("heavy", pair.heavy))
            ]
        except InvalidArgument as error:
            logger.warning("an image of a compared pair does not decode", extra={"reason": error.reason})
            continue
        yield pair, torch.stack(both)

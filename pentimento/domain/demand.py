"""Demand of pools: requests, starts, adapters and scores, and the quality that images kept. Mirrors
pentimento.api.controller.v1."""

from collections.abc import Iterable
from dataclasses import dataclass

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.thinned_steps import NO_STEPS, ThinnableSteps


@dataclass(frozen=True)
class KeptQuality:
    """`count` images, and the sums of the shares of the heavy model's quality that they kept and of their squares."""

    count: int = 0
    kept: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, share: float) -> "KeptQuality":
        """Return the comparison of one image that kept that share."""
        return cls(1, share, share * share)

    def __add__(self, other: "KeptQuality") -> "KeptQuality":
        return KeptQuality(self.count + other.count, self.kept + other.kept, self.squares + other.squares)


NOTHING_KEPT = KeptQuality()
# The largest share that one comparison can show: a score near 0 would make any image look far better.
MOST_KEPT = 2.0


def added_up(compared: Iterable[tuple[KeptQuality, ...]]) -> tuple[KeptQuality, ...]:
    """Return the sums by equal parts of confidence; those without any parts say nothing."""
    return tuple(sum(parts, NOTHING_KEPT) for parts in zip(*(one for one in compared if one), strict=True))


def kept_share(quality: float, best: float) -> float | None:
    """Return the share of the heavy model's score that an image kept; None where the score is no measure of quality."""
    return min(max(quality, 0.0) / best, MOST_KEPT) if best > 0.0 else None


@dataclass(frozen=True)
class StartShare:
    """Requests that started at a step of `step_count`, counted in steps of the requested model; 0 where unknown.
    `kind` as plans name it; `model`: the model that made the latent, or that refines an image."""

    start_step: int
    request_count: int
    kind: str = "noise"
    step_count: int = 0
    model: str = ""


@dataclass(frozen=True)
class AdapterDemand:
    """Requests that asked for an adapter. A LoRA's `others` are the further LoRAs of its requests, in order."""

    kind: AdapterKind
    name: str
    request_count: int
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the adapters of each request."""
        return (self.name, *self.others)


@dataclass(frozen=True)
class PoolDemand:
    """Requests of a pool since the last report, including deferred requests from earlier stages. `pool` is empty where
    it has its model's name. Of the `scored_count` a cascade deferred `deferred_count` to the next pool, and
    `stood_in_count` without a score (ADR 0008). `confidences` are the scores by CONFIDENCE_BINS equal parts of 0..1, or
    none. `starts` and `adapters` count requests that came to this pool first. `compared`: quality that light images
    kept of the heavy model's, by the same parts of confidence, or none; `hits`: quality that starts from the cache
    kept."""

    model: str
    arrived_count: int = 0
    completed_count: int = 0
    dropped_count: int = 0
    late_count: int = 0
    queue_length: int = 0
    starts: tuple[StartShare, ...] = ()
    scored_count: int = 0
    deferred_count: int = 0
    stood_in_count: int = 0
    pool: str = ""
    confidences: tuple[int, ...] = ()
    adapters: tuple[AdapterDemand, ...] = ()
    thinnable: ThinnableSteps = NO_STEPS
    compared: tuple[KeptQuality, ...] = ()
    hits: KeptQuality = NOTHING_KEPT

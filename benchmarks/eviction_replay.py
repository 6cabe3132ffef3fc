"""Replay a log of prompts through a cache of latents in memory, with the real eviction rules and NIRVANA's thresholds.

No image is generated: a request saves K of 50 steps. The cache holds single latents; an entry without latents is not
found.
"""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np
import numpy.typing as npt

from lab.simulator.eviction import Eviction, make_room
from pentimento.policies.cache_selection import NIRVANA_LATENT_THRESHOLDS, SelectionRules, allowed_steps, capture_steps

STEP_COUNT = 50
CAPTURED = capture_steps(STEP_COUNT, SelectionRules())
LEAST_SIMILARITY = min(rule.min_similarity for rule in NIRVANA_LATENT_THRESHOLDS)
PROMPTS = "prompts/diffusiondb_2m_first3500.txt.gz"
EMBEDDINGS = "prompts/diffusiondb_2m_first3500.minilm.f16.npy"

Donor = tuple[int, int]
"""An earlier request, and the most steps that its similarity allows to skip."""

Latent = tuple[int, int]
"""A request and the step K of its latent."""


@dataclass(frozen=True)
class Regime:
    """Describe who adds latents and how many entries compete.

    `hits_add`: a run that began at a latent adds those of its later steps. `nearest_count`: how many of the nearest
    entries a lookup compares; the largest saving serves.
    """

    name: str
    hits_add: bool
    nearest_count: int


PAPER = Regime("misses add, nearest", hits_add=False, nearest_count=1)
REGIMES = (
    PAPER,
    Regime("all add, nearest", hits_add=True, nearest_count=1),
    Regime("all add, best of 4", hits_add=True, nearest_count=4),
)


@dataclass(frozen=True)
class ReuseLog:
    """Hold, for every request, the earlier ones that it could start from, nearest first."""

    donors: tuple[tuple[Donor, ...], ...]

    def __len__(self) -> int:
        return len(self.donors)


def read_log(data: Path) -> ReuseLog:
    """Read the first 3,500 prompts of DiffusionDB in published order, with their embeddings."""
    with gzip.open(data / PROMPTS, "rt", encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    embeddings = np.load(data / EMBEDDINGS, allow_pickle=False).astype(np.float32)
    if len(embeddings) != count:
        raise ValueError(f"{EMBEDDINGS} has {len(embeddings)} rows, {PROMPTS} {count} lines")
    return log_of(embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True))


def log_of(vectors: npt.NDArray[np.float32]) -> ReuseLog:
    """Find the donors among unit vectors, (requests, dimensions)."""
    return ReuseLog(tuple(_donors(vectors[:row] @ vectors[row]) for row in range(len(vectors))))


def _donors(similarities: npt.NDArray[np.float32]) -> tuple[Donor, ...]:
    near = np.flatnonzero(similarities >= LEAST_SIMILARITY)
    near = near[np.argsort(-similarities[near], kind="stable")]
    steps = (allowed_steps(float(similarities[row]), STEP_COUNT, NIRVANA_LATENT_THRESHOLDS) for row in near)
    return tuple((int(row), allowed) for row, allowed in zip(near, steps, strict=True) if allowed)


class LatentCache:
    """Hold latents under an eviction rule. Holes are as in the paper: the largest remaining K' <= K serves."""

    def __init__(self, eviction: Eviction, regime: Regime, capacity_count: int) -> None:
        if capacity_count < len(CAPTURED):
            raise ValueError(f"a cache holds at least {len(CAPTURED)} latents, the number of one run")
        self._eviction = eviction
        self._regime = regime
        self._capacity_count = capacity_count
        self._held: dict[int, set[int]] = {}

    def serve(self, row: int, donors: Sequence[Donor]) -> int:
        """Look up, record the use and add the run's latents; return the steps saved."""
        best = self._best(donors)
        saved = best[1] if best else 0
        if best:
            entry, step = best
            self._eviction.use(best, [(entry, other) for other in self._held[entry] if other != step])
        if not best or self._regime.hits_add:
            self._add(row, [step for step in CAPTURED if step > saved])
        return saved

    def _best(self, donors: Sequence[Donor]) -> Latent | None:
        """Return the latent of the nearest entries that saves most; among equals the nearest one's."""
        best: Latent | None = None
        compared = 0
        for entry, allowed in donors:
            if entry not in self._held:
                continue
            step = max((held for held in self._held[entry] if held <= allowed), default=0)
            if step > (best[1] if best else 0):
                best = (entry, step)
            compared += 1
            if compared == self._regime.nearest_count:
                break
        return best

    def _add(self, row: int, steps: Sequence[int]) -> None:
        for item in make_room(self._eviction, len(steps), self._capacity_count):
            entry, gone = cast(Latent, item)
            self._held[entry].discard(gone)
            if not self._held[entry]:
                del self._held[entry]
        if steps:
            self._held[row] = set(steps)
        for step in steps:
            self._eviction.add((row, step), step)


def replay(log: ReuseLog, eviction: Eviction, regime: Regime, capacity_count: int, end: int | None = None) -> list[int]:
    """Return the steps that each of the first `end` requests saves, starting with an empty cache."""
    cache = LatentCache(eviction, regime, capacity_count)
    return [cache.serve(row, log.donors[row]) for row in range(len(log) if end is None else end)]


def block_means(shares: Sequence[float], size: int) -> list[float]:
    """Return the means of consecutive blocks of `size` requests, since their shares depend on each other."""
    return [fmean(shares[start : start + size]) for start in range(0, len(shares) - size + 1, size)]

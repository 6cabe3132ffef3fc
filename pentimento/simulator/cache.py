"""A cache with a state: what was painted before is what can be found, so hit rates emerge and are not set.

The selector and the eviction rules are the real ones (`policies.cache_selection`, `policies.eviction`). The nearest
entry is found exactly: the similarities of all prompts of the workload are known beforehand, so a lookup walks down the
list of a prompt's neighbours to the first that is in the cache. Neighbours below the lowest threshold are not kept,
since they are misses whatever they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import numpy.typing as npt

from pentimento.policies.cache_selection import (
    NearestEntry,
    SelectionContext,
    SelectionRules,
    UseImage,
    UseLatent,
    capture_steps,
    select_start,
)
from pentimento.policies.eviction import EVICTIONS
from pentimento.policies.serving import CacheUse
from pentimento.reports import StartKind

# Rows whose similarities are computed together.
_BLOCK = 256

Scope = tuple[str, str, int]
"""Tenant ("" for a shared pool), model ("" for images, which any may reuse), steps of a run."""


@dataclass(frozen=True)
class CacheSettings:
    """`capacity` counts items: a latent of one K, or an image. `shared`: one pool for all tenants. `warm_count`: that
    many of the workload's first prompts are in the cache before it begins. `retrieval_similarity`: from there on the
    image is answered as it is, where the policy is retrieval. `max_depth`: ancestors that an entry may have."""

    capacity: int = 10_000
    rules: SelectionRules = field(default_factory=SelectionRules)
    shared: bool = False
    warm_count: int = 0
    retrieval_similarity: float = 0.95
    max_depth: int = 1_000_000

    @property
    def lowest_similarity(self) -> float:
        tables = (*self.rules.latents, *self.rules.images)
        return min((*(rule.min_similarity for rule in tables), self.retrieval_similarity))


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """Where a request starts. `donor` is the row of the entry that it starts from, -1 without one."""

    kind: StartKind = StartKind.NOISE
    start_step: int = 0
    similarity: float = 0.0
    donor: int = -1
    depth: int = 0


MISS = CacheAnswer()


@dataclass(slots=True)
class _CachedPrompt:
    """What the cache holds of one prompt; `steps` are the K whose latents are there, 0 stands for the image."""

    steps: set[int] = field(default_factory=set)
    depth: int = 0


class Neighbours:
    """For every row of unit vectors the rows that are at least so similar, the nearest first."""

    def __init__(self, embeddings: npt.NDArray[np.float32], lowest_similarity: float) -> None:
        self._embeddings = embeddings
        self._lowest = lowest_similarity
        self._lists: dict[int, tuple[list[int], list[float]]] = {}

    def of(self, row: int) -> tuple[list[int], list[float]]:
        """Rows and their similarities. Computed for a block of rows at a time, when one of them is first asked for."""
        if row not in self._lists:
            begin = row - row % _BLOCK
            block = self._embeddings[begin : begin + _BLOCK] @ self._embeddings.T
            for offset, similarities in enumerate(block):
                self._lists[begin + offset] = self._near(similarities)
        return self._lists[row]

    def _near(self, similarities: npt.NDArray[np.float32]) -> tuple[list[int], list[float]]:
        near = np.flatnonzero(similarities >= self._lowest)
        near = near[np.argsort(-similarities[near], kind="stable")]
        return near.tolist(), similarities[near].tolist()


class SimulatedCache:
    """Of one cell. `embeddings` are the workload's; rows stand for prompts."""

    def __init__(
        self, use: CacheUse, eviction: str, settings: CacheSettings, embeddings: npt.NDArray[np.float32]
    ) -> None:
        self._use = use
        self._settings = settings
        self._neighbours = Neighbours(embeddings, settings.lowest_similarity)
        self._eviction = EVICTIONS[eviction]()
        self._entries: dict[Scope, dict[int, _CachedPrompt]] = {}

    def __len__(self) -> int:
        return len(self._eviction)

    def lookup(self, tenant: str, model: str, row: int, step_count: int) -> CacheAnswer:
        """Changes state: what serves is used. A row of -1 has no embedding and misses."""
        scope = self._scope(tenant, model, step_count)
        entries = self._entries.get(scope)
        if row < 0 or not entries:
            return MISS
        found = self._nearest(entries, row)
        if found is None:
            return MISS
        donor, similarity = found
        answer = self._select(entries[donor], donor, similarity, step_count)
        if answer.kind is not StartKind.NOISE:
            step = answer.start_step if answer.kind is StartKind.LATENT else 0
            self._eviction.use((scope, donor, step))
        return answer

    def insert(self, tenant: str, model: str, row: int, step_count: int, begun_at: int = 0, depth: int = 0) -> None:
        """Changes state: what a committed run from step `begun_at` captured. Full stores let go of what goes next."""
        if row < 0:
            return
        scope = self._scope(tenant, model, step_count)
        steps = [step for step in self._captured(step_count) if step == 0 or step > begun_at]
        if not steps or depth > self._settings.max_depth:
            return
        entry = self._entries.setdefault(scope, {}).setdefault(row, _CachedPrompt())
        entry.depth = depth
        for step in steps:
            entry.steps.add(step)
            self._eviction.add((scope, row, step), step or step_count)
        while len(self._eviction) > self._settings.capacity:
            self._evict()

    def warm(self, tenants: Iterable[str], model: str, step_count: int, rows: Iterable[int]) -> None:
        """Changes state: entries that are there before the workload begins."""
        for row in rows:
            for tenant in tenants:
                self.insert(tenant, model, row, step_count)

    def _scope(self, tenant: str, model: str, step_count: int) -> Scope:
        tenant = "" if self._settings.shared else tenant
        # x_K of 50 steps is no x_K of 30, and no other model's; an image is.
        return (tenant, model, step_count) if self._use is CacheUse.LATENTS else (tenant, "", 0)

    def _captured(self, step_count: int) -> tuple[int, ...]:
        return capture_steps(step_count, self._settings.rules) if self._use is CacheUse.LATENTS else (0,)

    def _nearest(self, entries: dict[int, _CachedPrompt], row: int) -> tuple[int, float] | None:
        rows, similarities = self._neighbours.of(row)
        for index, other in enumerate(rows):
            if other in entries:
                return other, similarities[index]
        return None

    def _select(self, entry: _CachedPrompt, donor: int, similarity: float, step_count: int) -> CacheAnswer:
        if self._use is CacheUse.RETRIEVAL:
            if similarity < self._settings.retrieval_similarity:
                return MISS
            return CacheAnswer(StartKind.RETRIEVAL, step_count, similarity, donor, entry.depth + 1)
        has_image = 0 in entry.steps
        latents = tuple(step for step in entry.steps if step)
        nearest = NearestEntry(similarity, latents, has_image)
        chosen = select_start(SelectionContext(step_count, nearest, nearest), self._settings.rules)
        if isinstance(chosen, UseLatent):
            return CacheAnswer(StartKind.LATENT, chosen.resume_step, similarity, donor, entry.depth + 1)
        if isinstance(chosen, UseImage):
            return CacheAnswer(StartKind.IMAGE, chosen.start_step, similarity, donor, entry.depth + 1)
        return MISS

    def _evict(self) -> None:
        scope, row, step = cast(tuple[Scope, int, int], self._eviction.pop())
        entry = self._entries[scope][row]
        entry.steps.discard(step)
        if not entry.steps:
            # All K are holes: the prompt leaves the index.
            del self._entries[scope][row]

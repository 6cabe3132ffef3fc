"""A cache with state: only earlier results can be found, so that hit rates emerge instead of being set.

The selector and the eviction rules are the real ones (`policies.cache_selection`, `eviction`). Every rule
evicts single items; under FIFO a gateway evicts whole entries. The nearest entries are exact: the similarities of
all prompts of the workload are known in advance, so a lookup walks a prompt's neighbours to the first ones in the
cache. Neighbours below the lowest threshold are misses in any case and are not stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from lab.runs import StartKind
from lab.simulator.eviction import make_room, open_eviction
from pentimento.domain.fleet import Plan
from pentimento.policies.cache_selection import (
    NEAREST_COUNT,
    NearestEntry,
    SelectionContext,
    SelectionRules,
    UseImage,
    UseLatent,
    keeps_image,
    kept_steps,
    select_start,
)
from pentimento.policies.followed_cache import CacheChoice, cache_in_force
from pentimento.policies.plan.entry import scaled_start_step
from pentimento.policies.plan.registry import CacheUse
from pentimento.profiles.kinds import biased

# rows per block of similarities
_BLOCK = 256
# Neighbours that are taken out of an array together.
_AT_ONCE = 64

Scope = tuple[str, str, int]
"""Tenant ("" for a shared pool), model ("" for images, which any may reuse), steps of a run."""

CachedItem = tuple[Scope, int, int]
"""Scope, row of the prompt, and K of a latent or 0 for an image."""


@dataclass(frozen=True)
class CacheSettings:
    """Settings of the cache. `capacity` counts items: a latent of one K, or an image. `shared`: one pool for all
    tenants. `warm_count`: number of the workload's first prompts that are cached before it begins.
    `retrieval_similarity`: least similarity at which a retrieval policy answers with the cached image. `max_depth`:
    ancestors of an entry. `eviction`: name of the rule, empty for the policy's. `bias_loss`: share of a hit's
    quality lost for each row beyond its table, if plans have a bias."""

    capacity: int = 10_000
    rules: SelectionRules = field(default_factory=SelectionRules)
    shared: bool = False
    warm_count: int = 0
    retrieval_similarity: float = 0.95
    max_depth: int = 1_000_000
    eviction: str = ""
    bias_loss: float = 0.05

    @property
    def lowest_similarity(self) -> float:
        tables = (*self.rules.latents, *self.rules.images)
        return min((*(rule.min_similarity for rule in tables), self.retrieval_similarity))


@dataclass(frozen=True, slots=True)
class CacheAnswer:
    """Where a request starts: at `start_step` of `step_count`. `donor` is the row of the entry that it starts from, -1
    without one. `kept`: the share of a hit's quality that stays although it goes beyond its table."""

    kind: StartKind = StartKind.NOISE
    start_step: int = 0
    step_count: int = 1
    similarity: float = 0.0
    donor: int = -1
    depth: int = 0
    kept: float = 1.0

    def start_step_of(self, step_count: int) -> int:
        """Return the first step of a model with `step_count` steps."""
        if not self.start_step or step_count == self.step_count:
            return self.start_step
        return scaled_start_step(self.start_step, self.step_count, step_count)


MISS = CacheAnswer()


@dataclass(slots=True)
class _CachedPrompt:
    """The cached items of one prompt; `steps` are the K of its latents, 0 stands for the image."""

    steps: set[int] = field(default_factory=set)
    depth: int = 0


@dataclass(frozen=True, slots=True)
class _Found:
    """One of the nearest entries of a scope."""

    row: int
    similarity: float
    entry: _CachedPrompt

    def answer(self, kind: StartKind, start_step: int, step_count: int) -> CacheAnswer:
        return CacheAnswer(kind, start_step, step_count, self.similarity, self.row, self.entry.depth + 1)


class Neighbours:
    """For every row of unit vectors the rows that are at least so similar, the nearest first."""

    def __init__(self, embeddings: npt.NDArray[np.float32], lowest_similarity: float) -> None:
        self._embeddings = embeddings
        self._lowest = lowest_similarity
        self._known: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = {}

    def of(self, row: int) -> Iterator[tuple[int, float]]:
        """Yield rows and their similarities. They are computed per block of rows, at its first use."""
        if row not in self._known:
            begin = row - row % _BLOCK
            block = self._embeddings[begin : begin + _BLOCK] @ self._embeddings.T
            for offset, similarities in enumerate(block):
                self._known[begin + offset] = self._near(similarities)
        rows, similarities = self._known[row]
        # Few are looked at, and there may be thousands.
        for begin in range(0, len(rows), _AT_ONCE):
            piece = slice(begin, begin + _AT_ONCE)
            yield from zip(rows[piece].tolist(), similarities[piece].tolist(), strict=True)

    def _near(self, similarities: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        near = np.flatnonzero(similarities >= self._lowest)
        near = near[np.argsort(-similarities[near], kind="stable")]
        return near.astype(np.int32), similarities[near]


class SimulatedCache:
    """The cache of one cell. `embeddings` are the workload's; rows stand for prompts."""

    def __init__(
        self, use: CacheUse, eviction: str, settings: CacheSettings, embeddings: npt.NDArray[np.float32]
    ) -> None:
        self._use = use
        self._settings = settings
        self._rules, self._alpha, self._kept = settings.rules, cast(float | None, None), 1.0
        self._neighbours = Neighbours(embeddings, settings.lowest_similarity)
        hits_add = settings.rules.keeps_latents_of_hits
        self._eviction = open_eviction(settings.eviction or eviction, settings.capacity, hits_add=hits_add)
        self._entries: dict[Scope, dict[int, _CachedPrompt]] = {}

    def __len__(self) -> int:
        return len(self._eviction)

    def follow(self, plan: Plan) -> None:
        """Changes state: hits are chosen as that plan says from now on, by the gateway's own rules."""
        now, own = cache_in_force(CacheChoice(), plan), self._settings.rules
        self._rules = replace(own, latents=biased(own.latents, now.bias), images=biased(own.images, now.bias))
        self._alpha, self._kept = now.alpha, _quality_kept(now.bias, self._settings.bias_loss)

    def lookup(
        self, tenant: str, model: str, row: int, step_count: int, latents: bool = True, images: bool = True
    ) -> CacheAnswer:
        """Return where a run of that model would start, of the kinds that it takes. A row of -1 has no embedding and
        misses."""
        if row < 0:
            return MISS
        use = self._use
        by_text = self._nearest(self._latent_scope(tenant, model, step_count), row) if latents and use.latents else []
        by_image = self._nearest(self._image_scope(tenant), row) if images and use.images else []
        if not by_text and not by_image:
            return MISS
        return self._select(by_text, by_image, step_count)

    def use(self, tenant: str, model: str, answer: CacheAnswer) -> None:
        """Changes state: note that a request of that model starts as it was answered."""
        if answer.kind is StartKind.LATENT:
            scope = self._latent_scope(tenant, model, answer.step_count)
            steps = self._entries.get(scope, {}).get(answer.donor, _CachedPrompt()).steps
            beside = [(scope, answer.donor, step) for step in steps if step != answer.start_step]
            self._eviction.use((scope, answer.donor, answer.start_step), beside)
        elif answer.kind is not StartKind.NOISE:
            self._eviction.use((self._image_scope(tenant), answer.donor, 0))

    def insert(self, tenant: str, model: str, row: int, step_count: int, start_step: int = 0, depth: int = 0) -> None:
        """Insert the results of a committed run from `start_step` on, and evict as many items from a full store."""
        if row < 0 or depth > self._settings.max_depth:
            return
        rules = self._rules
        added: list[tuple[Scope, tuple[int, ...]]] = []
        if self._use.latents:
            latents = kept_steps(step_count, start_step, rules)
            added.append((self._latent_scope(tenant, model, step_count), latents))
        if self._use is CacheUse.RETRIEVAL or (self._use.images and keeps_image(start_step, rules)):
            added.append((self._image_scope(tenant), (0,)))
        for item in make_room(self._eviction, self._new_count(row, added), self._settings.capacity):
            self._drop(cast(CachedItem, item))
        for scope, steps in added:
            self._add(scope, row, steps, step_count, depth)
        while len(self._eviction) > self._settings.capacity:
            # A cache that is smaller than what one run leaves.
            self._drop(cast(CachedItem, self._eviction.pop()))

    def _new_count(self, row: int, added: list[tuple[Scope, tuple[int, ...]]]) -> int:
        """Return how many of the items are new."""
        nothing = _CachedPrompt()
        held = [(self._entries.get(scope, {}).get(row, nothing).steps, steps) for scope, steps in added]
        return sum(step not in there for there, steps in held for step in steps)

    def warm(self, tenants: Iterable[str], model: str, step_count: int, rows: Iterable[int]) -> None:
        """Insert the entries that exist before the workload begins."""
        for row in rows:
            for tenant in tenants:
                self.insert(tenant, model, row, step_count)

    def _latent_scope(self, tenant: str, model: str, step_count: int) -> Scope:
        # x_K of 50 steps is no x_K of 30, and no other model's.
        return ("" if self._settings.shared else tenant, model, step_count)

    def _image_scope(self, tenant: str) -> Scope:
        return ("" if self._settings.shared else tenant, "", 0)

    def _add(self, scope: Scope, row: int, steps: tuple[int, ...], step_count: int, depth: int) -> None:
        if not steps:
            return
        entry = self._entries.setdefault(scope, {}).setdefault(row, _CachedPrompt())
        entry.depth = depth
        for step in steps:
            entry.steps.add(step)
            self._eviction.add((scope, row, step), step or step_count)

    def _nearest(self, scope: Scope, row: int) -> list[_Found]:
        entries = self._entries.get(scope)
        found: list[_Found] = []
        if not entries:
            return found
        for other, similarity in self._neighbours.of(row):
            if other in entries:
                found.append(_Found(other, similarity, entries[other]))
                if len(found) == NEAREST_COUNT:
                    break
        return found

    def _select(self, by_text: Sequence[_Found], by_image: Sequence[_Found], step_count: int) -> CacheAnswer:
        if self._use is CacheUse.RETRIEVAL:
            if not by_image or by_image[0].similarity < self._settings.retrieval_similarity:
                return MISS
            return by_image[0].answer(StartKind.RETRIEVAL, step_count, step_count)
        texts = (NearestEntry(found.similarity, tuple(found.entry.steps)) for found in by_text)
        images = (NearestEntry(found.similarity, has_image=True) for found in by_image)
        chosen = select_start(SelectionContext(step_count, texts, images, self._alpha), self._rules)
        if isinstance(chosen, UseLatent):
            found = by_text[chosen.entry].answer(StartKind.LATENT, chosen.saved_steps, step_count)
        elif isinstance(chosen, UseImage):
            found = by_image[chosen.entry].answer(StartKind.IMAGE, chosen.saved_steps, step_count)
        else:
            return MISS
        return found if self._kept == 1.0 else replace(found, kept=self._kept)

    def _drop(self, item: CachedItem) -> None:
        scope, row, step = item
        entry = self._entries[scope][row]
        entry.steps.discard(step)
        if not entry.steps:
            # All K are holes: the prompt leaves the index.
            del self._entries[scope][row]


def _quality_kept(bias: int, loss: float) -> float:
    """Return the share (0..1) of a hit's quality that remains `bias` rows beyond its table; a row costs `loss`."""
    return max(0.0, 1.0 - loss * max(bias, 0))

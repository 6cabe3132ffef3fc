"""Test that no lookup starts from another tenant's entry, and that its time does not reveal other tenants' entries.

    python -m benchmarks.isolation                 # a million lookups: half an hour
    python -m benchmarks.isolation --lookups 50000

A gateway on its real stores (qdrant-edge, SQLite) holds the entries of twelve tenants around the same forty themes, so
that the nearest entry mostly belongs to another tenant. Lookups are drawn at random over every route: latents, images
or both; one to three models; adapters that take effect immediately, later or not; with and without the shared pool. An
answer is foreign if it starts from an entry that is neither the caller's nor in a shared pool that it named.

The same lookups are played without the index's filter, without the ledger's check, and without both. Either one must be
enough; without both, the count shows how many answers would have been foreign.

Timing: a tenant looks up over gRPC, alternating, themes that other tenants have and themes that no tenant has; both
miss. The figure is the area under the ROC curve of the two times, or its complement if larger: 0.5 reveals nothing.
"""

import argparse
import asyncio
import random
import struct
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.runs.measure import Figure, at_least, at_most, counted, informative, measured, parse_options, publish
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import CacheScope, CandidateStart, LookupCandidate
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.generation import (
    Attempt,
    CapturedEntries,
    CapturedLatent,
    FromImage,
    FromLatent,
    ObjectReference,
)
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.settings import load_settings
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import CachedEntry
from pentimento.stores.vectors import VectorIndex, VectorMatch, VectorQuery
from services.vectordb_gateway.entries.checks import SHARED_POOL
from services.vectordb_gateway.lookup.lookup import Lookup
from services.vectordb_gateway.lookup.search import LookupBounds
from services.vectordb_gateway.match_predictor.match_watch import MatchWatch
from services.vectordb_gateway.settings import GatewayBounds, GatewaySettings
from services.vectordb_gateway.wiring import GatewayProcess, wire

DIMENSION_COUNT = 32
ENCODER = "sha256:isolation"
TENANTS = tuple(f"tenant-{number}" for number in range(12))
SPY = "spy"
THEME_COUNT = 40
MODELS = tuple(f"sha256:model-{number}" for number in range(3))
MODEL_OF_SPY = "sha256:model-of-spy"
# digest of the adapters, and the first step that they affect
ADAPTERS = (("", 0), ("sha256:lora", 0), ("sha256:lora", 12))
# approximate cosine of two prompts of one theme
NEARNESS = 0.97
DIGEST = "sha256:" + "0" * 64
# shares of the lookups that are played again without both defences, and without one
BARE_SHARE, HALF_SHARE = 0.25, 0.05
CONCURRENCY = 8


@dataclass(frozen=True)
class Owner:
    """Name an entry's tenant; `shared` entries are in the shared pool."""

    tenant: str
    shared: bool


@dataclass(frozen=True)
class DrawnLookup:
    """Hold one lookup, and the name of its route."""

    candidates: tuple[LookupCandidate, ...]
    embedding: Embedding
    route: str


@dataclass
class LookupCounts:
    """Count lookups' results by route: hits and foreign ones."""

    hits: Counter[str]
    foreign: Counter[str]
    lookups: Counter[str]

    @classmethod
    def empty(cls) -> "LookupCounts":
        return cls(Counter(), Counter(), Counter())


class Themes:
    """Hold the directions that prompts cluster around; a prompt is a direction with noise."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._themes = [self._unit([rng.gauss(0, 1) for _ in range(DIMENSION_COUNT)]) for _ in range(2 * THEME_COUNT)]

    def prompt(self, number: int) -> Embedding:
        """Return a new prompt of the theme; no tenant has those from `THEME_COUNT` on."""
        spread = sqrt((1 / NEARNESS - 1) / DIMENSION_COUNT)
        values = self._unit([value + self._rng.gauss(0, spread) for value in self._themes[number]])
        return Embedding(struct.pack(f"<{DIMENSION_COUNT}f", *values), DIMENSION_COUNT, ENCODER)

    @staticmethod
    def _unit(values: Sequence[float]) -> list[float]:
        length = sqrt(sum(value * value for value in values))
        return [value / length for value in values]


class WithoutFilter:
    """Search every tenant's points."""

    def __init__(self, index: VectorIndex) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        return await self._index.search(replace(query, tenants=(*TENANTS, SHARED_POOL)), timeout_s)


class EveryPool(str):
    """Equal to any pool."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class WithoutCheck:
    """Report every entry as the caller's."""

    def __init__(self, ledger: CacheLedger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def live_entries(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        entries = self._ledger.live_entries(entry_ids)
        return {entry_id: replace(entry, pool=EveryPool()) for entry_id, entry in entries.items()}


def scope(rng: random.Random, tenant: str, shared: bool) -> CacheScope:
    adapters_digest, from_step = rng.choice(ADAPTERS)
    return CacheScope(
        tenant=tenant,
        model_digest=rng.choice(MODELS),
        vae_digest="sha256:vae",
        scheduler_digest="sha256:scheduler",
        prediction_type="epsilon",
        width_px=64,
        height_px=64,
        guidance_scale=3.0,
        negative_prompt="",
        num_inference_steps=50,
        adapters_digest=adapters_digest,
        adapters_from_step=from_step,
        shared_pool=shared,
    )


def draw(rng: random.Random, themes: Themes) -> DrawnLookup:
    tenant, shared = rng.choice(TENANTS), rng.random() < 0.4
    latents, images = rng.choice(((True, False), (False, True), (True, True)))
    models = rng.choice((1, 1, 2, 3))
    candidates = tuple(LookupCandidate(scope(rng, tenant, shared), latents, images) for _ in range(models))
    kinds = "latents and images" if latents and images else "latents" if latents else "images"
    route = f"{kinds}, {models} models, {'shared pool' if shared else 'own entries'}"
    return DrawnLookup(candidates, themes.prompt(rng.randrange(THEME_COUNT)), route)


async def fill(process: GatewayProcess, client: GatewayClient, rng: random.Random, themes: Themes) -> dict[str, Owner]:
    """Commit entries of every tenant around most themes, and return their owners. Their objects are only names."""
    owners: dict[str, Owner] = {}
    numbers = count(1)
    for tenant in (*TENANTS, SPY):
        for theme in rng.sample(range(THEME_COUNT), THEME_COUNT * 3 // 4):
            shared = tenant != SPY and rng.random() < 0.25
            of = scope(rng, tenant, shared)
            of = replace(of, model_digest=MODEL_OF_SPY) if tenant == SPY else of
            by = Attempt(f"request-{next(numbers)}", 1, 1, "frontdoor", 1, tenant)
            grant = await client.reserve(of, by)
            if grant is None:
                raise RuntimeError("the gateway grants no reservation")
            latents = tuple(
                CapturedLatent(slot.resume_step, 1.0, ObjectReference(slot.key, DIGEST, 10), True)
                for slot in grant.latents
            )
            captured = CapturedEntries(grant.grant_id, latents, ObjectReference(grant.image_key, DIGEST, 10))
            entry_id = await client.commit(of, by, captured, themes.prompt(theme), themes.prompt(theme), 0)
            owners[entry_id] = Owner(tenant, shared)
    await asyncio.to_thread(process.indexing.index_new)
    return owners


def is_foreign(asked: DrawnLookup, found: CandidateStart, owners: dict[str, Owner]) -> bool:
    if not isinstance(found.start, FromLatent | FromImage):
        return False
    owner, of = owners[found.start.donor.entry_id], asked.candidates[0].scope
    if owner.shared:
        return not of.shared_pool
    return owner.tenant != of.tenant


async def play(lookup: Lookup, seed: int, number: int, owners: dict[str, Owner]) -> LookupCounts:
    """Play `number` lookups, a few at a time; the same ones for the same seed."""
    rng, tally = random.Random(seed), LookupCounts.empty()
    themes = Themes(random.Random(0))
    drawn = iter(range(number))

    async def ask() -> None:
        for _ in drawn:
            asked = draw(rng, themes)
            answer = await lookup.lookup(asked.candidates, PromptEmbedding(asked.embedding), None)
            if answer.search_skipped:
                raise RuntimeError(f"a lookup was not searched: {answer.starts[0].reason}")
            tally.lookups[asked.route] += 1
            tally.hits[asked.route] += any(isinstance(found.start, FromLatent | FromImage) for found in answer.starts)
            tally.foreign[asked.route] += any(is_foreign(asked, found, owners) for found in answer.starts)

    await asyncio.gather(*(ask() for _ in range(CONCURRENCY)))
    return tally


async def times(client: GatewayClient, number: int) -> list[tuple[str, float]]:
    """Return seconds of a tenant's lookups in random order: of other tenants' themes, of no tenant's, and, as a
    control, of the caller's entries."""
    rng, themes, taken = random.Random(3), Themes(random.Random(0)), []
    asked = replace(scope(rng, SPY, False), model_digest=MODELS[0], adapters_digest="", adapters_from_step=0)
    own = replace(asked, model_digest=MODEL_OF_SPY)
    for warm in range(number + 50):
        kind = rng.choice(("others", "nobody", "own"))
        theme = rng.randrange(THEME_COUNT) + (THEME_COUNT if kind == "nobody" else 0)
        embedding = themes.prompt(theme)
        # The caller has nothing for the others' model: themes of other tenants and of no tenant both miss.
        candidate = LookupCandidate(own if kind == "own" else asked, True, False)
        began = time.perf_counter()
        await client.lookup([candidate], embedding)
        if warm >= 50:
            taken.append((kind, round(time.perf_counter() - began, 6)))
    return taken


def area(samples: Sequence[tuple[str, float]], one: str, other: str) -> float:
    """Return the area under the ROC curve of the two kinds' times (Mann and Whitney), or its complement if larger."""
    ordered = sorted((taken, kind) for kind, taken in samples if kind in (one, other))
    ranks = sum(rank for rank, (_, kind) in enumerate(ordered, 1) if kind == one)
    ones = sum(kind == one for _, kind in ordered)
    others = len(ordered) - ones
    found = (ranks - ones * (ones + 1) / 2) / (ones * others) if ones and others else 0.5
    return max(found, 1 - found)


def settings(directory: Path) -> GatewaySettings:
    flags = {
        "--index-url": f"edge://{directory}/index",
        "--objects-url": f"file://{directory}/objects",
        "--ledger-url": f"sqlite:///{directory}/ledger.sqlite",
        "--thresholds": "latent:0.65:0.1,latent:0.85:0.3,latent:0.95:0.5,image:0.6:0.4",
        "--part-wait-factor": "200",
        # a skipped search could only hide a foreign start
        "--match-predictor": "off",
        "--log-level": "warning",
    }
    words = [word for pair in flags.items() for word in pair]
    return load_settings(GatewaySettings, "vectordb_gateway", words, {})


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[GatewayProcess]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        process = wire(settings(directory), bounds=GatewayBounds(maintenance_interval_s=3600, min_free_bytes=0))
        await process.server.start()
        try:
            await process.warm()
            yield process
        finally:
            await process.drain()
            await process.server.stop()
            await process.close()


def altered(process: GatewayProcess, *, index: bool, ledger: bool) -> Lookup:
    """Return a lookup without the index's filter, or without the ledger's check, or without both."""
    stores, told = process.stores, settings(Path())
    searched: Any = WithoutFilter(stores.index) if index else stores.index
    checked: Any = WithoutCheck(stores.ledger) if ledger else stores.ledger
    bounds = LookupBounds(10.0)
    watch = MatchWatch(stores.ledger, told.match_predictor)
    return Lookup(process.guard, searched, checked, told.selection.reuse(), bounds, watch)


async def run(number: int, timed: int) -> tuple[list[Figure], dict[str, Any]]:
    bare_number, half = int(number * BARE_SHARE), int(number * HALF_SHARE)
    with TemporaryDirectory(prefix="isolation") as directory:
        async with running(Path(directory)) as process:
            channel = open_channel(process.server.bound_addresses[0], RpcChannelSettings())
            client = GatewayClient(channel)
            owners = await fill(process, client, random.Random(1), Themes(random.Random(0)))
            whole = await play(process.gateway.lookup, 2, number, owners)
            unfiltered = await play(altered(process, index=True, ledger=False), 2, half, owners)
            unchecked = await play(altered(process, index=False, ledger=True), 2, half, owners)
            bare = await play(altered(process, index=True, ledger=True), 2, bare_number, owners)
            taken = await times(client, timed)
            await channel.close()
    least, none, shown = at_least(100_000 * number / 1_000_000), at_most(0), informative()
    both = f"without both, in {bare_number} of the same lookups"
    others, own = (f"{what} prompts against nobody's, AUC of times" for what in ("others'", "own"))
    figures = [
        counted("foreign starts", whole.foreign.total(), number, none),
        counted("with the ledger's check alone", unfiltered.foreign.total(), half, none),
        counted("with the index's filter alone", unchecked.foreign.total(), half, none),
        counted(both, bare.foreign.total(), bare_number, least),
        counted("lookups with a start", whole.hits.total(), number, shown),
        measured(others, taken, lambda of: area(of, "others", "nobody"), at_most(0.55)),
        measured(own, taken, lambda of: area(of, "own", "nobody"), shown),
    ]
    notes = {"tenants": len(TENANTS), "themes": THEME_COUNT, "entries": len(owners), "timed lookups": timed}
    return figures, notes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lookups", type=int, default=1_000_000, help="number of lookups [1000000; 4000 with --quick]")


def main() -> int:
    options = parse_options("isolation", __doc__, add_options)
    number, timed = (4_000, 600) if options.quick else (options.rest["lookups"], 6_000)
    figures, notes = asyncio.run(run(number, timed))
    return publish(options, figures, notes=notes)


if __name__ == "__main__":
    raise SystemExit(main())

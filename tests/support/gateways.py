"""A gateway on real stores in this process, its client, and entries to put into it."""

import asyncio
import math
import random
import struct
import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest

from lab.fixtures.bounded_gateway import NIRVANA_FLAGS
from lab.fixtures.laid_ledgers import lay_tables
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import CacheHolding, CacheScope, CandidateStart, LookupAnswer, LookupCandidate
from pentimento.domain.clock import Clock
from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import Attempt, CacheGrant, CapturedEntries, CapturedLatent
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.settings import load_settings
from services.vectordb_gateway.entries import writer
from services.vectordb_gateway.integrity import check_integrity
from services.vectordb_gateway.lookup import lookup
from services.vectordb_gateway.settings import GatewayBounds, GatewaySettings
from services.vectordb_gateway.upkeep import store_calls
from services.vectordb_gateway.wiring import GatewayProcess, wire

DIMENSION_COUNT = 8
ENCODER = "sha256:encoder"
# Rounds of maintenance only when a test asks for them.
BOUNDS = GatewayBounds(maintenance_interval_s=3600, object_grace_s=0, min_free_bytes=0)
ALL_STEPS = (5, 10, 15, 20, 25)
_random = random.Random(0)
_numbers = count(1)


# The tenant of scopes and attempts that name none.
default_tenant = "tenant"


def new_tenant() -> str:
    """Return the name of a tenant that no other test has."""
    return f"tenant-{next(_numbers)}"


def scope(tenant: str | None = None, **changes: object) -> CacheScope:
    fields: dict[str, object] = {
        "tenant": default_tenant if tenant is None else tenant,
        "model_digest": "sha256:model",
        "vae_digest": "sha256:vae",
        "scheduler_digest": "sha256:scheduler",
        "prediction_type": "epsilon",
        "width_px": 64,
        "height_px": 64,
        "guidance_scale": 7.5,
        "negative_prompt": "",
        "num_inference_steps": 50,
    }
    return CacheScope(**(fields | changes))  # type: ignore[arg-type]


def embedding(*values: float, encoder: str = ENCODER) -> Embedding:
    """In the direction of `values`; in any direction without them."""
    given = values or tuple(_random.gauss(0, 1) for _ in range(DIMENSION_COUNT))
    padded = [*given, *([0.0] * (DIMENSION_COUNT - len(given)))]
    length = math.sqrt(sum(value * value for value in padded))
    packed = struct.pack(f"<{DIMENSION_COUNT}f", *(value / length for value in padded))
    return Embedding(packed, DIMENSION_COUNT, encoder)


def at_similarity(similarity: float) -> Embedding:
    """Return an embedding with this cosine to `embedding(1)`."""
    return embedding(similarity, math.sqrt(1 - similarity * similarity))


def attempt(tenant: str | None = None, token: int = 1, request_id: str = "") -> Attempt:
    by = default_tenant if tenant is None else tenant
    return Attempt(request_id or f"request-{next(_numbers)}", 1, token, "frontdoor", 1, by)


@dataclass
class RunningGateway:
    """`upload` stands in for a worker: it stores bytes under the grant's keys."""

    process: GatewayProcess
    client: GatewayClient
    directory: Path
    uploaded: dict[str, bytes] = field(default_factory=dict)

    def upload(self, grant: CacheGrant, size: int = 100) -> CapturedEntries:
        put = self.process.stores.objects.put
        latents = []
        for slot in grant.latents:
            self.uploaded[slot.key] = _random.randbytes(size)
            reference = put(slot.key, self.uploaded[slot.key], durable=False)
            latents.append(CapturedLatent(slot.resume_step, slot.resume_step / 50, reference, True))
        image = put(grant.image_key, _random.randbytes(size), durable=False) if grant.image_key else None
        return CapturedEntries(grant.grant_id, tuple(latents), image)

    async def store(
        self,
        text: Embedding,
        of: CacheScope | None = None,
        steps: Sequence[int] = ALL_STEPS,
        image: Embedding | None = None,
        ancestor_depth: int = 0,
    ) -> str:
        """Reserve, upload the granted objects, commit the latents of `steps` (and the image, if it has an embedding),
        and wait until lookups find them. Return the entry's id."""
        of = of or scope()
        by = attempt(of.tenant)
        grant = await self.client.reserve(of, by)
        assert grant is not None
        uploaded = self.upload(grant)
        captured = CapturedEntries(
            grant.grant_id,
            tuple(latent for latent in uploaded.latents if latent.resume_step in steps),
            uploaded.image if image is not None else None,
        )
        entry_id = await self.client.commit(of, by, captured, text, image, ancestor_depth)
        # On a busy machine the first start of the index outlasts what a commit waits for it.
        await asyncio.to_thread(self.process.indexing.index_new)
        return entry_id

    async def ask(self, text: Embedding, *of: CacheScope, quality: float | None = None) -> LookupAnswer:
        """A lookup of several candidates."""
        return await self.client.lookup([LookupCandidate(each) for each in of], text, quality)

    async def lookup(
        self, text: Embedding, of: CacheScope | None = None, quality: float | None = None
    ) -> CandidateStart:
        """A lookup of one."""
        return (await self.ask(text, of or scope(), quality=quality)).starts[0]

    def held(self, tenant: str | None = None) -> CacheHolding:
        """Return what the tenant holds in live entries."""
        return self.process.stores.ledger.holding(default_tenant if tenant is None else tenant)

    def maintain(self) -> None:
        """A round of the background work, comparisons included."""
        self.process.maintenance.request_reconciliation()
        self.process.maintenance.run_round()

    def problems(self) -> list[str]:
        stores = self.process.stores
        return check_integrity(stores.ledger, stores.index, stores.objects)


def gateway_settings(directory: Path, *flags: str) -> GatewaySettings:
    """Embedded stores below the directory."""
    given = {
        "--index-url": f"edge://{directory}/index",
        "--objects-url": f"file://{directory}/objects",
        "--ledger-url": f"sqlite:///{directory}/ledger.sqlite",
        "--part-wait-factor": "200",
        "--earned-reuse": "no",
        "--log-level": "warning",
    }
    given |= dict(zip(flags[::2], flags[1::2], strict=True))
    if "--profiles" not in given:
        given = {NIRVANA_FLAGS[0]: NIRVANA_FLAGS[1]} | given
    switches = {"yes": "--", "no": "--no-"}
    argv = [
        word
        for flag, value in given.items()
        for word in ([switches[value] + flag.removeprefix("--")] if value in switches else [flag, value])
    ]
    return load_settings(GatewaySettings, "vectordb_gateway", argv, {})


def be_patient_with_stores(patch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a second or two is no store that hangs: nothing would be granted meanwhile."""
    patch.setattr(writer, "_RESERVES_WITHIN_S", 6.0)
    patch.setattr(store_calls, "_STUCK_S", 6.0)
    patch.setattr(lookup, "_NEIGHBOURS_WITHIN_S", 10.0)


def image_thresholds(*pairs: str) -> tuple[str, str]:
    """Return the flag with these thresholds of images, next to NIRVANA's of latents."""
    return NIRVANA_FLAGS[0], ",".join((NIRVANA_FLAGS[1], *(f"image:{pair}" for pair in pairs)))


@asynccontextmanager
async def running_gateway(
    directory: Path, *flags: str, clock: Clock | None = None, **bounds: float
) -> AsyncIterator[RunningGateway]:
    """Run a warm gateway on a new socket. `flags`: pairs of flag and value, yes and no for switches; `clock`: the
    machine's clock; `bounds`: fields of `GatewayBounds`."""
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", UserWarning)
        be_patient_with_stores(patch)
        settings = gateway_settings(directory, *flags)
        lay_tables(settings.ledger_url)
        process = wire(settings, clock, replace(BOUNDS, **bounds))  # type: ignore[arg-type]
        await process.server.start()
        try:
            await process.warm()
            channel = open_channel(process.server.bound_addresses[0], RpcChannelSettings())
            yield RunningGateway(process, GatewayClient(channel), directory)
            await channel.close()
        finally:
            await process.drain()
            await process.server.stop()
            await process.close()

"""Play a log of prompts on gateway processes: each prompt is looked up, and a miss becomes an entry, as in NIRVANA.

No image is generated and no latent is stored: entries name objects of the size that a latent of 64 x 64 x 4 has.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from benchmarks.filled_cache import LATENT_BYTES, SCOPE
from benchmarks.prompt_logs import Vectors
from lab.fixtures.bounded_gateway import MODULE, NIRVANA_FLAGS
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import LookupCandidate
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, CapturedEntries, CapturedLatent, FromLatent, ObjectReference
from pentimento.rpc import RpcChannelSettings, open_channel

ENCODER = "sha256:" + "e" * 64
START_LIMIT_S = 60.0
SKIPPED = "miss: no near entry is likely"
ASKED = replace(SCOPE, tenant="log")


@dataclass(frozen=True)
class LoggedLookup:
    """Store one lookup: its milliseconds, whether the match predictor skipped its search, and the saved steps."""

    took_ms: float
    skipped: bool
    saved_steps: int

    @property
    def saved_share(self) -> float:
        """Return the share of all steps that the start saves."""
        return self.saved_steps / ASKED.num_inference_steps


@asynccontextmanager
async def log_gateway(
    *flags: str, index_url: str = "", bounds: str = "min_free_bytes=0"
) -> AsyncIterator[GatewayClient]:
    """Run a gateway process that reuses by NIRVANA's constants, and yield a client once it answers."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        address = f"unix:{folder}/gateway"
        command = [sys.executable, "-m", MODULE, "--bounds", bounds, "--listen", address, "--log-level", "error"]
        command += ["--index-url", index_url or f"edge://{folder}/index", "--ledger-url", f"sqlite:///{folder}/ledger"]
        command += ["--objects-url", f"file://{folder}/objects", *NIRVANA_FLAGS]
        process = await asyncio.create_subprocess_exec(*command, "--part-wait-factor", "100", *flags)
        channel = open_channel(address, RpcChannelSettings())
        try:
            client = GatewayClient(channel)
            await _answering(client)
            yield client
        finally:
            await channel.close()
            process.terminate()
            await process.wait()


async def _answering(client: GatewayClient) -> None:
    until = time.monotonic() + START_LIMIT_S
    while time.monotonic() < until:
        with suppress(PentimentoError):
            await client.statistics()
            return
        await asyncio.sleep(0.2)
    raise RuntimeError("a gateway does not answer")


async def ask(client: GatewayClient, number: int, vector: Vectors, noise_s: float | None = None) -> LoggedLookup:
    """Look the log's prompt of that number up, and keep a miss as an entry; an image takes `noise_s`."""
    text = Embedding(vector.tobytes(), len(vector), ENCODER)
    sent = time.perf_counter()
    answer = await client.lookup([LookupCandidate(ASKED)], text, noise_s=noise_s)
    took_ms = 1000 * (time.perf_counter() - sent)
    start = answer.starts[0].start
    if isinstance(start, FromLatent):
        await client.report_start(start.latent.key, from_image=False, taken=True)
        return LoggedLookup(took_ms, False, start.resume_step)
    await _insert(client, number, text)
    return LoggedLookup(took_ms, answer.starts[0].reason == SKIPPED, 0)


async def _insert(client: GatewayClient, number: int, text: Embedding) -> None:
    attempt = Attempt(f"request-{number}", 1, 1, "frontdoor", 1, ASKED.tenant)
    grant = await client.reserve(ASKED, attempt)
    if grant is None:
        return  # the ledger hangs on a busy machine: an entry less
    latents = (
        CapturedLatent(slot.resume_step, 1.0, ObjectReference(slot.key, ENCODER, LATENT_BYTES), True)
        for slot in grant.latents
    )
    await client.commit(ASKED, attempt, CapturedEntries(grant.grant_id, tuple(latents), None), text)

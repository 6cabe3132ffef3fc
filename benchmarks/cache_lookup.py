"""Measure Lookup over gRPC, at 100,000 entries during inserts and an index build, and at 1,000,000.

    python -m benchmarks.cache_lookup --data DIR

One client calls a gateway process with embedded stores; vectors have 512 dimensions, in clusters of twenty, for one
tenant. During a build, lookups are sent one after the other from before it begins until its index is in use, while
entries are reserved and committed twenty times a second. Abandoned lookups are counted. NIRVANA reports about 100 ms a
search, MoDM 50 ms at 100,000 entries.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.filled_cache import (
    DIMENSION_COUNT,
    ENCODER,
    LATENT_BYTES,
    SCOPE,
    FilledCache,
    Vectors,
    clusters_of,
    fill,
    filled_in,
    vectors,
)
from lab.fixtures.bounded_gateway import MODULE, NIRVANA_FLAGS
from lab.runs.intervals import percentile
from lab.runs.measure import Figure, Options, at_least, at_most, counted, informative, measured, parse_options, publish
from pentimento.clients.gateway import GatewayClient
from pentimento.domain.cache import LookupCandidate
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, CapturedEntries, CapturedLatent, ObjectReference
from pentimento.rpc import RpcChannelSettings, open_channel

START_LIMIT_S = 600.0
BUILD_LIMIT_S = 1800.0
INSERTS_PER_S = 20
# A new gateway compares ledger and index, and may train its match predictor.
WARM_S = 15.0
BURST_COUNT = 500
CONCURRENT_COUNT = 16


@dataclass
class Answers:
    """Store lookups' times in ms, how many were abandoned or found nothing, lookups per second, and processor time per
    lookup if it was read."""

    took_ms: list[float] = field(default_factory=list)
    skipped_count: int = 0
    missed_count: int = 0
    per_s: float = 0.0
    processor_ms: float = 0.0


async def look_up(client: GatewayClient, vector: Vectors) -> tuple[bool, bool]:
    """Return whether the lookup was abandoned, and whether it found a near entry."""
    answer = await client.lookup([LookupCandidate(SCOPE)], Embedding(vector.tobytes(), len(vector), ENCODER))
    return answer.search_skipped, answer.starts[0].text_similarity is not None


async def insert_one(client: GatewayClient, number: int, vector: Vectors) -> None:
    """Reserve and commit an entry without storing its latent."""
    attempt = Attempt(f"request-{number}-{time.monotonic_ns()}", 1, 1, "frontdoor", 1, SCOPE.tenant)
    grant = await client.reserve(SCOPE, attempt)
    if grant is None:
        raise RuntimeError("the gateway accepts no entries")
    slot = grant.latents[-1]
    reference = ObjectReference(slot.key, "sha256:" + "0" * 64, LATENT_BYTES)
    captured = CapturedEntries(grant.grant_id, (CapturedLatent(slot.resume_step, 1.0, reference, True),), None)
    await client.commit(SCOPE, attempt, captured, Embedding(vector.tobytes(), len(vector), ENCODER))


async def one_by_one(client: GatewayClient, queries: Vectors, go_on: Callable[[int], bool]) -> Answers:
    answers = Answers()
    began = time.perf_counter()
    for number in itertools.count():
        if not go_on(number):
            break
        sent = time.perf_counter()
        skipped, found = await look_up(client, queries[number % len(queries)])
        answers.took_ms.append((time.perf_counter() - sent) * 1000)
        answers.skipped_count += skipped
        answers.missed_count += not (found or skipped)
    answers.per_s = len(answers.took_ms) / (time.perf_counter() - began)
    return answers


def for_seconds(seconds: float) -> Callable[[int], bool]:
    """Return a function that says, before each lookup, whether the time is not yet over."""
    until = time.monotonic() + seconds
    return lambda number: time.monotonic() < until


async def at_once(client: GatewayClient, queries: Vectors, count: int) -> Answers:
    """Look up from sixteen callers, each waiting for its answer."""
    parts = [count // CONCURRENT_COUNT] * CONCURRENT_COUNT
    began = time.perf_counter()
    many = await asyncio.gather(
        *(one_by_one(client, queries[at:], lambda number, part=part: number < part) for at, part in enumerate(parts))  # type: ignore[misc]
    )
    took_s = time.perf_counter() - began
    took_ms = [each for answers in many for each in answers.took_ms]
    skipped, missed = sum(one.skipped_count for one in many), sum(one.missed_count for one in many)
    return Answers(took_ms, skipped, missed, (len(took_ms) - skipped) / took_s)


async def inserting(client: GatewayClient, entries: Vectors) -> None:
    """Insert at a steady rate, independent of an insert's duration, until cancelled."""
    due = time.monotonic()
    for number in itertools.count():
        await insert_one(client, number, entries[number % len(entries)])
        due += 1 / INSERTS_PER_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))


@asynccontextmanager
async def gateway(cache: FilledCache, bounds: str = "min_free_bytes=0") -> AsyncIterator[GatewayClient]:
    """Run a gateway process, and yield a client once it answers lookups."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        address = f"unix:{folder}/gateway"
        command = [sys.executable, "-m", MODULE, "--bounds", bounds, "--listen", address, "--log-level", "warning"]
        command += ["--index-url", f"edge://{cache.index}", "--ledger-url", cache.ledger_url]
        command += ["--objects-url", f"file://{folder}/objects", "--max-entries", "10000000"]
        command += ["--max-size-bytes", str(2**50), *NIRVANA_FLAGS]
        process = await asyncio.create_subprocess_exec(*command)
        channel = open_channel(address, RpcChannelSettings())
        try:
            client = GatewayClient(channel)
            await serving(client, process)
            yield client
        finally:
            await channel.close()
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def serving(client: GatewayClient, process: asyncio.subprocess.Process) -> None:
    until = time.monotonic() + START_LIMIT_S
    probe = vectors(1, 1, seed=0)[0]
    while time.monotonic() < until and process.returncode is None:
        with suppress(PentimentoError):
            if not (await look_up(client, probe))[0]:
                return
        await asyncio.sleep(0.2)
    raise RuntimeError("the gateway does not look entries up")


async def during_a_build(cache: FilledCache, count: int) -> tuple[Answers, Answers, Answers]:
    """Measure quiet lookups one by one, then concurrent ones, then one by one during inserts and a rebuild of the
    index."""
    queries = vectors(2000, clusters_of(cache.entries_count), seed=-1 % 2**32)
    entries = vectors(1000, clusters_of(cache.entries_count), seed=-2 % 2**32)
    bounds = f"min_free_bytes=0,most_unindexed_count={BURST_COUNT},least_points_count=1"
    async with gateway(cache, bounds) as client:
        await one_by_one(client, queries, for_seconds(WARM_S))
        before_s = processor_s_of_children()
        quiet = await one_by_one(client, queries, lambda number: number < count)
        quiet.processor_ms = (processor_s_of_children() - before_s) / count * 1000
        many = await at_once(client, queries, 4 * count)
        before = cache.pointer.read_bytes()
        began = time.monotonic()

        def not_taken_over(number: int) -> bool:
            if time.monotonic() > began + BUILD_LIMIT_S:
                raise RuntimeError("no build took place")
            # the pointer is a file; read it at every twentieth lookup only
            return number % 20 != 0 or cache.pointer.read_bytes() == before

        for number in range(BURST_COUNT - INSERTS_PER_S):
            await insert_one(client, number, entries[number])
        inserts = asyncio.create_task(inserting(client, entries))
        try:
            busy = await one_by_one(client, queries, not_taken_over)
        finally:
            inserts.cancel()
            with suppress(asyncio.CancelledError):
                await inserts
    return quiet, many, busy


def processor_s_of_children() -> float:
    """Return the processor seconds of the gateway and its index process so far."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


async def with_inserts(cache: FilledCache, count: int) -> Answers:
    """Measure one by one during inserts, with no build due."""
    queries = vectors(2000, clusters_of(cache.entries_count), seed=-1 % 2**32)
    entries = vectors(1000, clusters_of(cache.entries_count), seed=-2 % 2**32)
    async with gateway(cache) as client:
        await one_by_one(client, queries, for_seconds(WARM_S))
        inserts = asyncio.create_task(inserting(client, entries))
        answers = await one_by_one(client, queries, lambda number: number < count)
        inserts.cancel()
        with suppress(asyncio.CancelledError):
            await inserts
    return answers


def filled(options: Options, entries_count: int, scratch: Path) -> FilledCache:
    """Return the cache in the data folder, filling it if needed: a million entries take most of an hour."""
    folder: Path = options.rest["data"] or scratch
    return fill(filled_in(folder, entries_count), options.rest["threads"])


def main() -> int:
    options = parse_options("cache_lookup", __doc__, add_options)
    count = 200 if options.quick else 3000
    small = 12_000 if options.quick else options.rest["entries"]
    large = 0 if options.quick else options.rest["large"]
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        cache = filled(options, small, Path(folder))
        quiet, many, busy = asyncio.run(during_a_build(cache, count))
        figures = [*latency_figures(f"{small:,} entries, inserts and a build", busy, 3.0, 8.0)]
        figures += throughput_figures(f"{small:,} entries", many)
        figures += latency_figures(f"{small:,} entries, quiet", quiet, None, None)
        figures.append(processor_figure(f"{small:,} entries, quiet", quiet))
        if large:
            figures += large_figures(filled(options, large, Path(folder)), count)
        else:
            figures.append(Figure("p99 of a lookup, 1,000,000 entries, inserts", None, at_most(20.0, "ms")))
    notes = {"dimensions": DIMENSION_COUNT, "inserts_per_s": INSERTS_PER_S, "concurrent": CONCURRENT_COUNT}
    return publish(options, figures, notes=notes)


def large_figures(cache: FilledCache, count: int) -> list[Figure]:
    answers = asyncio.run(with_inserts(cache, count))
    return latency_figures(f"{cache.entries_count:,} entries, inserts", answers, None, 20.0)


def latency_figures(name: str, answers: Answers, p50_ms: float | None, p99_ms: float | None) -> list[Figure]:
    took = [round(each, 3) for each in answers.took_ms]
    middle = informative("ms") if p50_ms is None else at_most(p50_ms, "ms")
    tail = informative("ms") if p99_ms is None else at_most(p99_ms, "ms")
    return [
        measured(f"p50 of a lookup, {name}", took, percentile(0.5), middle),
        measured(f"p99 of a lookup, {name}", took, percentile(0.99), tail),
        counted(f"lookups given up, {name}", answers.skipped_count, len(took), informative("lookups")),
    ]


def throughput_figures(name: str, answers: Answers) -> list[Figure]:
    figure = Figure(f"lookups a second, {name}, quiet", answers.per_s, at_least(500.0, "1/s"), 1)
    return [
        figure,
        counted(f"given up among them, {name}", answers.skipped_count, len(answers.took_ms), informative()),
    ]


def processor_figure(name: str, answers: Answers) -> Figure:
    """Report processor time, on which other processes of the machine have little effect."""
    value = answers.processor_ms
    return Figure(f"processor time of a lookup, gateway and index, {name}", value, informative("ms"), 1)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="folder that keeps filled caches between runs (default: none)")
    parser.add_argument("--entries", type=int, default=100_000, help="entries while inserts and a build run")
    parser.add_argument("--large", type=int, default=1_000_000, help="entries of the large cache; 0: none")
    parser.add_argument("--threads", type=int, default=2, help="threads of the first build")


if __name__ == "__main__":
    raise SystemExit(main())

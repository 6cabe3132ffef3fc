"""Measure what the match predictor gains on live gateways with a Qdrant server 5 and 100 ms away.

    python -m benchmarks.match_predictor_live --data DIR

For each distance two gateways run as processes, one with `--match-predictor auto` and one with `off`, each with an
index server (a double of Qdrant's gRPC API that delays every query). DiffusionDB's prompts are looked up in their
order, twenty a second on both gateways, in drawn order; a prompt that misses becomes an entry, as in NIRVANA. Each
lookup tells what an image takes from noise, 0.87 s: a zoo image's time on two cores.

The net gain of a window is measured, not the gate's estimate. A skipped lookup gains what it takes less than on the
other gateway, minus the seconds of the steps that the other one saves there; while the predictor is on, every lookup
costs a prediction, as the gateway measures it. Lookups that both gateways search differ by the machine's noise alone,
and count in p50 and p99. Precision: hits ÷ searched lookups. Recall: lookups that were searched ÷ all that hit on the
other gateway. Both count windows with skipped searches.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.prompt_logs import DIFFUSIONDB, Vectors, read_vectors
from benchmarks.suites.instant import free_port
from benchmarks.suites.log_gateways import LoggedLookup, ask, log_gateway
from lab.runs.intervals import percentile
from lab.runs.measure import Figure, at_least, drawn_orders, informative, measured, parse_options, publish, share
from pentimento.clients.gateway import GatewayClient

DISTANCES_MS = (5, 100)
SIDES = ("auto", "off")
IMAGE_S = 0.87
WINDOW, PROMPTS_PER_S = 250, 20.0


@dataclass(frozen=True)
class LiveWindow:
    """Store a window's answers by side, whether the predictor was on at its end, and the seconds of a prediction."""

    auto: Sequence[LoggedLookup]
    off: Sequence[LoggedLookup]
    on: bool
    prediction_s: float

    @property
    def skips(self) -> bool:
        """Return whether any search was skipped."""
        return any(answer.skipped for answer in self.auto)

    @property
    def net_ms(self) -> float:
        """Return the milliseconds gained per lookup."""
        gained = [
            off.took_ms - auto.took_ms - 1000 * IMAGE_S * off.saved_share
            for auto, off in zip(self.auto, self.off, strict=True)
            if auto.skipped
        ]
        return sum(gained) / len(self.auto) - (1000 * self.prediction_s if self.skips or self.on else 0.0)


@asynccontextmanager
async def far_gateway(choice: str, distance_ms: float) -> AsyncIterator[GatewayClient]:
    """Run a gateway process and its index server, and yield a client."""
    index = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "lab.fixtures.qdrant_double", index, str(distance_ms / 1000)]
    server = await asyncio.create_subprocess_exec(*command)
    try:
        async with log_gateway("--match-predictor", choice, index_url=f"qdrant://{index}") as client:
            yield client
    finally:
        server.terminate()
        await server.wait()


async def play(vectors: Vectors, distance_ms: float) -> tuple[list[LiveWindow], str]:
    """Return the windows of a log at a distance, and what the predictor says of itself at the end."""
    windows, said = [], ""
    async with AsyncExitStack() as stack:
        clients = {side: await stack.enter_async_context(far_gateway(side, distance_ms)) for side in SIDES}
        for first in range(0, len(vectors) - WINDOW + 1, WINDOW):
            found = await ask_both(clients, first, vectors[first : first + WINDOW])
            now = (await clients["auto"].statistics()).match_predictor
            windows.append(LiveWindow(found["auto"], found["off"], now.on, now.prediction_s))
            said = f"{'on' if now.on else 'off'}: {now.reason}"
            print(f"{distance_ms} ms, from {first}: {windows[-1].net_ms:+.2f} ms a lookup, {said}", flush=True)
    return windows, said


async def ask_both(clients: Mapping[str, GatewayClient], first: int, vectors: Vectors) -> dict[str, list[LoggedLookup]]:
    """Look a window up on both gateways, at the rate of the benchmark; the first prompt is number `first`."""
    found: dict[str, dict[int, LoggedLookup]] = {side: {} for side in clients}

    async def one(row: int, sides: Sequence[str]) -> None:
        for side in sides:
            found[side][row] = await ask(clients[side], first + row, vectors[row], IMAGE_S)

    async with asyncio.TaskGroup() as group:
        for row, sides in enumerate(drawn_orders(SIDES, len(vectors), seed=first)):
            group.create_task(one(row, sides))
            await asyncio.sleep(1 / PROMPTS_PER_S)
    return {side: [answers[row] for row in range(len(vectors))] for side, answers in found.items()}


def figures_of(name: str, windows: Sequence[LiveWindow]) -> list[Figure]:
    """Return the net gain, the lookups' times on both sides, and precision and recall."""
    skipping = [window for window in windows if window.skips]
    figures = [
        measured(f"{name}: net gain", [window.net_ms for window in windows], fmean, at_least(0.0, "ms a lookup")),
        share(f"{name}: windows with the predictor on", sum(one.on for one in windows), len(windows), informative()),
    ]
    if skipping:
        worst = min(window.net_ms for window in skipping)
        figures.append(Figure(f"{name}: worst window that skips", worst, at_least(0.0, "ms a lookup"), len(skipping)))
        figures += _prediction(name, skipping)
    for side in SIDES:
        took = [answer.took_ms for window in windows for answer in getattr(window, side)]
        for what, part in (("p50", 0.5), ("p99", 0.99)):
            figures.append(measured(f"{name}: {what} of a lookup, {side}", took, percentile(part), informative("ms")))
    return figures


def _prediction(name: str, windows: Sequence[LiveWindow]) -> list[Figure]:
    pairs = [pair for window in windows for pair in zip(window.auto, window.off, strict=True)]
    searched = [auto for auto, _ in pairs if not auto.skipped]
    hits = [auto for auto, off in pairs if off.saved_share]
    found, kept = sum(one.saved_share > 0 for one in searched), sum(not one.skipped for one in hits)
    return [
        share(f"{name}: hit rate without the predictor", len(hits), len(pairs), informative()),
        share(f"{name}: precision", found, len(searched), informative()),
        share(f"{name}: recall", kept, len(hits), at_least(0.95)),
        share(f"{name}: searches skipped", len(pairs) - len(searched), len(pairs), informative()),
    ]


def main() -> int:
    options = parse_options("match_predictor_live", __doc__, _own_options)
    vectors = read_vectors(DIFFUSIONDB, options.rest["data"], 1000 if options.quick else 2500)
    figures: list[Figure] = []
    said: dict[str, str] = {}
    for distance_ms in DISTANCES_MS:
        windows, said[f"{distance_ms} ms"] = asyncio.run(play(vectors, distance_ms))
        figures += figures_of(f"{distance_ms} ms away", windows)
    return publish(options, figures, notes={"image_s": IMAGE_S, "at the end": said})


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory with prompts/")


if __name__ == "__main__":
    raise SystemExit(main())

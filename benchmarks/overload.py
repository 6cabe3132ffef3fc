"""More than the fleet can paint: what still gets done in time, how soon the others hear no, and who gets a turn.

On an emulated fleet of sixteen, open-loop. Peak goodput is the best of runs around capacity; then twice and five times
as much is asked. A rejection is timed at the client, from the call to its error, and counts only as RESOURCE_EXHAUSTED
with RetryInfo. Last, a greedy tenant asks for four times its share beside one that asks for what is its own.
"""

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.emulated_runs import FLEETS, capacity_per_s, emulated_suite, played, steady_load
from benchmarks.report import Figure, Options, at_least, at_most, counted, measured, parse_options, publish
from benchmarks.statistics import quantile
from pentimento.domain.emulation import EmulatedFleet, read_fleet
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.domain.identity import Role
from pentimento.domain.image_request import GenerateEvent, ImageRequest
from pentimento.reports import Report, make_report
from pentimento.rpc import new_token, token_entry
from pentimento.sdk import AsyncClient
from pentimento.sdk.local import LocalSuite
from pentimento.workloads import Workload

AROUND_CAPACITY = (0.8, 0.9, 1.0)
OVERLOADS = (2.0, 5.0)
GOODPUT = {2.0: at_least(0.95, "x"), 5.0: at_least(0.90, "x")}
REJECTION = at_most(20.0, "ms")
FAIRNESS = at_least(0.95)
# Of capacity: what the modest tenant asks for, less than its half, and the greedy one.
MODEST, GREEDY = 0.4, 4.0
TENANTS = ("greedy", "modest")
SLO_FACTOR = 2.0


@dataclass
class Rejections:
    """Seconds from the call to a rejection as it ought to be, and those of another kind."""

    seconds: list[float] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def note(self, error: PentimentoError, seconds: float) -> None:
        if not isinstance(error, ResourceExhausted):
            return
        if error.retry_after_ms is None:
            self.others.append(f"{error.reason} without RetryInfo")
        else:
            self.seconds.append(seconds)


class NotingClient(AsyncClient):
    """Tells `rejections` how long each one took."""

    rejections: Rejections

    async def stream(
        self, request: ImageRequest, *, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        began = time.perf_counter()
        events = super().stream(request, idempotency_key=idempotency_key, preview_interval_steps=preview_interval_steps)
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except PentimentoError as error:
            self.rejections.note(error, time.perf_counter() - began)
            raise


@dataclass(frozen=True)
class Run:
    """One load on the suite; `share` of capacity."""

    share: float
    report: Report
    rejections: Rejections

    def row(self) -> dict[str, Any]:
        report = self.report
        return {
            "share_of_capacity": self.share,
            "requests": report.overall.total,
            "goodput_per_s": report.goodput,
            "counts": {outcome.value: count for outcome, count in report.overall.counts.items()},
            "jain": report.jain if math.isfinite(report.jain) else None,
            "p50_s": report.overall.latency_s.p50 if report.overall.latency_s.count else None,
            "other_rejections": sorted(set(self.rejections.others)),
        }


def main() -> int:
    options = parse_options("overload", __doc__, add_options)
    fleet = read_fleet(options.rest["fleet"])
    with suite_of(options.rest["fleet"]) as (suite, tokens):
        runs = asyncio.run(all_runs(options, fleet, suite, tokens))
    return publish(options, figures(runs), notes={"fleet": options.rest["fleet"].name, "emulated": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, default=FLEETS / "heavy-16.toml", help="fleet file")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of a load")


@contextmanager
def suite_of(fleet: Path) -> Iterator[tuple[LocalSuite, dict[str, str]]]:
    """The suite, and a token for each tenant."""
    tokens = {tenant: new_token() for tenant in TENANTS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokens.toml"
        entries = [token_entry(token, tenant, frozenset({Role.USER})) for tenant, token in tokens.items()]
        file.write_text("\n".join(entries))
        with emulated_suite(fleet, ("--token-file", str(file))) as suite:
            yield suite, tokens


async def all_runs(options: Options, fleet: EmulatedFleet, suite: LocalSuite, tokens: dict[str, str]) -> list[Run]:
    """Around capacity, beyond it, and last the two tenants together."""
    capacity = capacity_per_s(fleet, fleet.default_model)
    shares = (1.0, 2.0) if options.quick else (*AROUND_CAPACITY, *OVERLOADS)
    runs = []
    for seed, share in enumerate(shares):
        workload = load(options, fleet, share * capacity, seed, {"greedy": 1.0})
        runs.append(await run(suite, tokens, workload, share))
    asked = {"greedy": GREEDY, "modest": MODEST}
    workload = load(options, fleet, sum(asked.values()) * capacity, len(shares), asked)
    runs.append(await run(suite, tokens, workload, sum(asked.values())))
    return runs


def load(options: Options, fleet: EmulatedFleet, rate: float, seed: int, tenants: dict[str, float]) -> Workload:
    duration_s = 6.0 if options.quick else float(options.rest["duration"])
    model = fleet.model(fleet.default_model)
    slowest = max(
        batch.step.mean_s for batch in model.profile.batches if batch.batch_size <= fleet.devices[0].max_batch
    )
    slo_s = SLO_FACTOR * model.steps * slowest
    return steady_load(rate, duration_s, slo_s, seed, tenants=tenants, steps=model.steps, model=model.name)


def most_together(fleet: EmulatedFleet) -> int:
    return max(devices.max_batch for devices in fleet.devices)


async def run(suite: LocalSuite, tokens: dict[str, str], workload: Workload, share: float) -> Run:
    """On clients of their own, so that nothing of an earlier run is left in them."""
    rejections, clients = Rejections(), {}
    for tenant, token in tokens.items():
        client = NotingClient(suite.endpoint.public, token=token)
        client.rejections = rejections
        clients[tenant] = client
    try:
        records = await played(workload, clients)
    finally:
        for client in clients.values():
            await client.close()
    found = Run(share, make_report(f"{share:g} x capacity", records, {"kind": "emulated"}), rejections)
    print(found.row(), flush=True)
    return found


def figures(runs: Sequence[Run]) -> list[Figure]:
    *alone, together = runs
    peak = max(run.report.goodput for run in alone if run.share <= max(AROUND_CAPACITY))
    rows = [run.row() for run in runs]
    found = []
    for run in alone:
        if run.share in GOODPUT:
            name = f"goodput at {run.share:g} x capacity / peak"
            found.append(Figure(name, run.report.goodput / peak if peak else None, GOODPUT[run.share], rows, None))
    over = [run for run in alone if run.share in GOODPUT]
    seconds = [value for run in over for value in run.rejections.seconds]
    others = [reason for run in runs for reason in run.rejections.others]
    rejected_count = len(seconds) + len(others)
    found.append(rejection_figure(seconds))
    found.append(counted("rejections without RetryInfo", len(others), max(rejected_count, 1), at_most(0), others[:50]))
    jain = together.report.jain if math.isfinite(together.report.jain) else None
    found.append(Figure("Jain index, greedy and modest tenant", jain, FAIRNESS, rows, None))
    return found


def rejection_figure(seconds: Sequence[float]) -> Figure:
    if len(seconds) < 2:
        return Figure("time to reject, p99", None, REJECTION, list(seconds), None)
    milliseconds = [1e3 * value for value in seconds]
    return measured("time to reject, p99", milliseconds, lambda values: quantile(sorted(values), 0.99), REJECTION)


if __name__ == "__main__":
    raise SystemExit(main())

"""Overload the fleet: images in time, seconds until a rejection, and tenants' shares.

On an emulated fleet of sixteen, open-loop. Goodput is the number of images answered in time per second, once the queues
have settled and while the load lasts; its peak is the best of runs around capacity; then the load is two and five times
capacity. A rejection is timed at the client, from the call to the error, for requests that were never accepted. It
includes the contention of client and server on one machine; a server that only refuses is timed during the same load.
Only RESOURCE_EXHAUSTED with RetryInfo counts. Requests accepted and abandoned later are counted separately. Last, a
greedy tenant requests ten times as much as one that requests less than its half. Several rounds run on one suite, with
different arrivals.
"""

import argparse
import asyncio
import math
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.bare_refusals import bare_refusals
from benchmarks.stolen_time import StolenTime
from benchmarks.suites.emulated import FLEETS, capacity_per_s, emulated_suite, played, steady_load
from lab.emulation.fleet_file import EmulatedFleet, largest_batch, measured_batches, read_fleet
from lab.runs import Outcome, Report, RequestRecord, make_report
from lab.runs.answers import GENERATOR
from lab.runs.intervals import paired_ratio, paired_ratio_interval, percentile
from lab.runs.measure import (
    Figure,
    Interval,
    Options,
    Target,
    at_least,
    at_most,
    counted,
    informative,
    measured,
    parse_options,
    publish,
)
from lab.workloads import Workload
from pentimento.domain.errors import PentimentoError, ResourceExhausted
from pentimento.domain.image_request import GenerateEvent, ImageRequest
from pentimento.domain.tenants import Role
from pentimento.rpc import new_token, token_entry
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite

AROUND_CAPACITY = (0.8, 0.9, 1.0)
OVERLOADS = (2.0, 5.0)
GOODPUT = {2.0: at_least(0.95, "x"), 5.0: at_least(0.90, "x")}
REJECTION = at_most(20.0, "ms")
FAIRNESS = at_least(0.95)
# shares of capacity: the modest tenant's, less than its half, and the greedy one's
MODEST, GREEDY = 0.4, 4.0
TENANTS = ("greedy", "modest")
SLO_FACTOR = 2.0
LOGARITHMS = "Student's t of the logarithms over rounds"
# in units of the SLO: by then the queues have their full length
SETTLING = 2.0


@dataclass
class Rejections:
    """Collect seconds from the call to a correct rejection, other rejections, and requests abandoned later."""

    seconds: list[float] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    dropped_count: int = 0

    def note(self, error: PentimentoError, seconds: float, *, accepted: bool) -> None:
        if not isinstance(error, ResourceExhausted):
            return
        if error.retry_after_ms is None:
            self.others.append(f"{error.reason} without RetryInfo")
        elif accepted:
            self.dropped_count += 1
        else:
            self.seconds.append(seconds)


class NotingClient(AsyncClient):
    """Add each rejection's seconds to `rejections`."""

    rejections: Rejections

    async def stream(self, request: ImageRequest, **options: Any) -> AsyncGenerator[GenerateEvent, None]:
        began, accepted = time.perf_counter(), False
        events = super().stream(request, **options)
        try:
            async with aclosing(events):
                async for event in events:
                    accepted = True
                    yield event
        except PentimentoError as error:
            self.rejections.note(error, time.perf_counter() - began, accepted=accepted)
            raise


@dataclass(frozen=True)
class OverloadRun:
    """Store one load on the suite, as a `share` of capacity.

    `goodput` is per second in the settled part. `bare_s`: times of a server that only refuses, in overloads. `stolen`:
    the share of the machine's time that its host used.
    """

    share: float
    report: Report
    goodput: float
    rejections: Rejections
    bare_s: Sequence[float]
    stolen: float

    def line(self) -> str:
        report = self.report
        counts = {outcome.value: count for outcome, count in report.overall.counts.items()}
        late = next((stage.seconds.p99 for stage in report.stages if stage.name == GENERATOR), None)
        return (
            f"{self.share:g} x capacity: goodput {self.goodput:.2f}/s, {counts}, Jain {report.jain:.3f}, stolen "
            f"{self.stolen:.4f}, dropped once accepted {self.rejections.dropped_count}, generator late p99 {late} s"
        )


def main() -> int:
    options = parse_options("overload", __doc__, add_options)
    fleet = read_fleet(options.rest["fleet"])
    with suite_of(options.rest["fleet"]) as (suite, tokens):
        rounds = asyncio.run(all_rounds(options, fleet, suite, tokens))
    return publish(options, figures(rounds), notes={"fleet": options.rest["fleet"].name, "emulated": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, default=FLEETS / "heavy-16-half.toml", help="fleet file")
    parser.add_argument("--duration", type=float, default=90.0, help="seconds of a load")
    parser.add_argument("--rounds", type=int, default=3, help="plays of every load")


def round_count(options: Options) -> int:
    """Return 1 in a quick run."""
    return 1 if options.quick else int(options.rest["rounds"])


@contextmanager
def suite_of(fleet: Path, *flags: str) -> Iterator[tuple[LocalSuite, dict[str, str]]]:
    """Run the suite, and yield it with a token for each tenant."""
    tokens = {tenant: new_token() for tenant in TENANTS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokens.toml"
        entries = [token_entry(token, tenant, frozenset({Role.USER})) for tenant, token in tokens.items()]
        file.write_text("\n".join(entries))
        with emulated_suite(fleet, ("--token-file", str(file), *flags)) as suite:
            yield suite, tokens


async def all_rounds(
    options: Options, fleet: EmulatedFleet, suite: LocalSuite, tokens: dict[str, str]
) -> list[list[OverloadRun]]:
    """Play every load once a round, in sequence."""
    return [
        [await run(suite, tokens, load) for load in loads(options, fleet, number)]
        for number in range(round_count(options))
    ]


@dataclass(frozen=True)
class Load:
    """Hold a load of `share` of capacity as a workload; it counts from `settled_s` until `until_s`."""

    share: float
    workload: Workload
    settled_s: float
    until_s: float


def loads(options: Options, fleet: EmulatedFleet, round_number: int) -> Iterator[Load]:
    """Yield loads around capacity, beyond it, and last two tenants together, with different arrivals in each round."""
    capacity, slo_s = capacity_per_s(fleet, fleet.default_model), slo_of(fleet)
    shares = (1.0, 2.0) if options.quick else (*AROUND_CAPACITY, *OVERLOADS)
    asked = [(share, {"greedy": 1.0}) for share in shares]
    asked.append((GREEDY + MODEST, {"greedy": GREEDY, "modest": MODEST}))
    settling_s = SETTLING * slo_s
    duration_s = 1.5 * settling_s if options.quick else max(float(options.rest["duration"]), 1.5 * settling_s)
    steps = fleet.model(fleet.default_model).steps
    for seed, (share, tenants) in enumerate(asked, start=round_number * len(asked)):
        rate = share * capacity
        workload = steady_load(rate, duration_s, slo_s, seed, tenants=tenants, steps=steps, model=fleet.default_model)
        yield Load(share, workload, settling_s, duration_s)


def slo_of(fleet: EmulatedFleet) -> float:
    """Return the SLO in units of an image's time in a full batch."""
    model, devices = fleet.model(fleet.default_model), fleet.devices[0]
    batch = largest_batch(model, devices)
    steps = [entry.step.mean_s for entry in measured_batches(model) if entry.batch_size <= batch]
    return SLO_FACTOR * model.steps * max(steps) / devices.speed


async def run(suite: LocalSuite, tokens: dict[str, str], load: Load) -> OverloadRun:
    """Play with new clients, so that no state of an earlier run remains."""
    rejections, clients = Rejections(), {}
    for tenant, token in tokens.items():
        client = NotingClient(suite.endpoint.public, token=token)
        client.rejections = rejections
        clients[tenant] = client
    try:
        async with AsyncExitStack() as stack:
            stolen = stack.enter_context(StolenTime())
            bare_s = await stack.enter_async_context(bare_refusals()) if load.share in GOODPUT else []
            records = await played(load.workload, clients)
    finally:
        for client in clients.values():
            await client.close()
    report = make_report(f"{load.share:g} x capacity", records, {"kind": "emulated"})
    goodput = goodput_of(records, load.settled_s, load.until_s)
    found = OverloadRun(load.share, report, goodput, rejections, bare_s, stolen.share())
    print(found.line(), flush=True)
    return found


def goodput_of(records: Sequence[RequestRecord], from_s: float, until_s: float) -> float:
    in_time = (record for record in records if record.outcome is Outcome.COMPLETED)
    return sum(from_s <= record.ended_s < until_s for record in in_time) / (until_s - from_s)


def figures(rounds: Sequence[Sequence[OverloadRun]]) -> list[Figure]:
    runs = [run for each in rounds for run in each]
    found = goodput_figures([[(run.share, run.goodput) for run in each[:-1]] for each in rounds])
    over = [run for run in runs if run.share in GOODPUT]
    seconds = [value for run in over for value in run.rejections.seconds]
    others = [reason for run in runs for reason in run.rejections.others]
    rejected_count = len(seconds) + len(others)
    found.append(rejection_figure("time to reject, p99", seconds, REJECTION))
    bare_s = [value for run in over for value in run.bare_s]
    found.append(rejection_figure("time a server takes that only refuses, p99", bare_s, informative("ms")))
    found.append(counted("rejections without RetryInfo", len(others), max(rejected_count, 1), at_most(0)))
    given_up = [run.rejections.dropped_count for run in over]
    answered = [run.report.overall.total - len(run.rejections.seconds) for run in over]
    found.append(counted("accepted, then dropped", sum(given_up), max(sum(answered), 1), informative()))
    found.append(fairness_figure([each[-1].report.jain for each in rounds]))
    return found


def goodput_figures(rounds: Sequence[Sequence[tuple[float, float]]]) -> list[Figure]:
    """Return the goodput of each overload over its round's peak.

    `rounds` has the share of capacity and the goodput per second of each load of one tenant. The interval is over
    rounds; one round has none.
    """
    peaks = [max(goodput for share, goodput in each if share <= max(AROUND_CAPACITY)) for each in rounds]
    found = []
    for load in (share for share, _ in rounds[0] if share in GOODPUT):
        pairs = [(dict(each)[load], peak) for each, peak in zip(rounds, peaks, strict=True)]
        name, known = f"goodput at {load:g} x capacity / peak", all(min(pair) > 0 for pair in pairs)
        interval = Interval(*paired_ratio_interval(pairs), LOGARITHMS) if known and len(pairs) > 1 else None
        found.append(Figure(name, paired_ratio(pairs) if known else None, GOODPUT[load], len(pairs), interval))
    return found


def fairness_figure(indices: Sequence[float]) -> Figure:
    """Return the smallest of the rounds' indices."""
    least = min(indices) if all(math.isfinite(index) for index in indices) else None
    return Figure("Jain index, greedy and modest tenant, least of the rounds", least, FAIRNESS, len(indices))


def rejection_figure(name: str, seconds: Sequence[float], target: Target) -> Figure:
    if len(seconds) < 2:
        return Figure(name, None, target, len(seconds))
    milliseconds = [1e3 * value for value in seconds]
    return measured(name, milliseconds, percentile(0.99), target)


if __name__ == "__main__":
    raise SystemExit(main())

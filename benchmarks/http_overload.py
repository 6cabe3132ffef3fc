"""Overload the fleet over HTTP: images in time, seconds until a 429, and tenants' shares.

As `overload`, through the edge: an emulated fleet of sixteen, open-loop, each request a POST. Goodput is the number of
images answered in time per second, once the queues have settled and while the load lasts; its peak is the best of runs
around capacity. A refusal is timed from the request to the end of its answer, for requests that were never accepted,
and counts only as 429 with Retry-After. Servers that only refuse, over HTTP and over gRPC, are timed during the same
load. Last, a greedy tenant requests ten times as much as one that requests less than its half.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.overload import (
    GOODPUT,
    REJECTION,
    Load,
    fairness_figure,
    goodput_figures,
    loads,
    rejection_figure,
    round_count,
    suite_of,
)
from benchmarks.peers.bare_refusals import bare_http_refusals, bare_refusals
from benchmarks.peers.http_client import HttpClient
from benchmarks.stolen_time import StolenTime
from benchmarks.suites.emulated import FLEETS
from lab.emulation.fleet_file import EmulatedFleet, read_fleet
from lab.runs.figures import fair_shares, jain_index
from lab.runs.measure import Figure, Options, at_most, counted, informative, parse_options, publish
from lab.workloads import Arrival
from pentimento.supervisor.local import LocalSuite

GONE_S = 120.0


@dataclass(frozen=True)
class HttpRecord:
    """Store one request's due and answer times, in seconds of its run; `took_s` runs from its sending.

    `in_time`: answered before its deadline. `refused`: 429 with Retry-After before it was accepted. `silent`: refused
    without Retry-After.
    """

    tenant: str
    status: int
    ended_s: float
    took_s: float
    in_time: bool
    refused: bool
    silent: bool = False
    code: str = ""


@dataclass
class HttpRun:
    """Store one load as a `share` of capacity. `bare_http_s` and `bare_s` are times of servers that only refuse, in
    overloads."""

    share: float
    records: list[HttpRecord]
    goodput: float
    bare_http_s: Sequence[float]
    bare_s: Sequence[float]
    stolen: float

    def line(self) -> str:
        statuses = dict(Counter(f"{record.status} {record.code}".strip() for record in self.records))
        return f"{self.share:g} x capacity: goodput {self.goodput:.2f}/s, {statuses}, stolen {self.stolen:.4f}"

    def in_time_by_tenant(self) -> dict[str, int]:
        tenants = sorted({record.tenant for record in self.records})
        return {tenant: sum(one.in_time for one in self.records if one.tenant == tenant) for tenant in tenants}

    def jain(self) -> float:
        """Return Jain's index of each tenant's images in time over its max-min fair share."""
        got = self.in_time_by_tenant()
        demands = Counter(record.tenant for record in self.records)
        fair = fair_shares({tenant: float(count) for tenant, count in demands.items()}, sum(got.values()))
        return jain_index([got[tenant] / share for tenant, share in fair.items() if share > 0] or [0.0])


def main() -> int:
    options = parse_options("http_overload", __doc__, add_options)
    fleet = read_fleet(options.rest["fleet"])
    with suite_of(options.rest["fleet"], "--http", "127.0.0.1:0") as (suite, tokens):
        rounds = asyncio.run(all_rounds(options, fleet, suite, tokens))
    return publish(options, figures(rounds), notes={"fleet": options.rest["fleet"].name, "emulated": True})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fleet", type=Path, default=FLEETS / "heavy-16-half.toml", help="fleet file")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of a load")
    parser.add_argument("--rounds", type=int, default=3, help="plays of every load")


async def all_rounds(
    options: Options, fleet: EmulatedFleet, suite: LocalSuite, tokens: dict[str, str]
) -> list[list[HttpRun]]:
    """Play every load once a round, in sequence."""
    return [
        [await run(suite, tokens, load) for load in loads(options, fleet, number)]
        for number in range(round_count(options))
    ]


async def run(suite: LocalSuite, tokens: dict[str, str], load: Load) -> HttpRun:
    """Play a load open-loop, with separate connections per tenant."""
    clients = {tenant: HttpClient(suite.endpoint.http, token) for tenant, token in tokens.items()}
    async with AsyncExitStack() as stack:
        stolen = stack.enter_context(StolenTime())
        is_over = load.share in GOODPUT
        bare_http_s = await stack.enter_async_context(bare_http_refusals()) if is_over else []
        bare_s = await stack.enter_async_context(bare_refusals()) if is_over else []
        began = time.perf_counter()
        records = await asyncio.gather(*(asked(clients[one.tenant], one, began) for one in load.workload.arrivals))
    for client in clients.values():
        client.close()
    in_time = sum(one.in_time and load.settled_s <= one.ended_s < load.until_s for one in records)
    goodput = in_time / (load.until_s - load.settled_s)
    found = HttpRun(load.share, list(records), goodput, bare_http_s, bare_s, stolen.share())
    print(found.line(), flush=True)
    return found


async def asked(client: HttpClient, arrival: Arrival, began: float) -> HttpRecord:
    """Send at the due time, and return the outcome."""
    document = {
        "prompt": arrival.prompt,
        "model": arrival.model,
        "num_inference_steps": arrival.steps,
        "seed": arrival.seed,
        "cache": "off",
        "deadline_ms": max(round(arrival.deadline_s * 1000), 1),
    }
    request = client.request(document)
    await asyncio.sleep(began + arrival.at_s - time.perf_counter())
    sent = time.perf_counter()
    async with asyncio.timeout(GONE_S):
        answer = await client.ask(request)
    ended = time.perf_counter()
    code = "" if answer.status == 200 else str(json.loads(answer.body)["error"]["code"])
    in_time = answer.status == 200 and ended - began - arrival.at_s <= arrival.deadline_s
    silent, accepted = "retry-after" not in answer.headers, "x-request-id" in answer.headers
    refused = answer.status == 429 and not silent and not accepted
    took_s = ended - sent
    return HttpRecord(arrival.tenant, answer.status, ended - began, took_s, in_time, refused, silent, code)


def figures(rounds: Sequence[Sequence[HttpRun]]) -> list[Figure]:
    runs = [run for each in rounds for run in each]
    over = [run for run in runs if run.share in GOODPUT]
    found = goodput_figures([[(run.share, run.goodput) for run in each[:-1]] for each in rounds])
    seconds = [one.took_s for run in over for one in run.records if one.refused]
    others = [f"{one.status} {one.code}" for run in runs for one in run.records if one.status not in (200, 504, 429)]
    silent = [one.code for run in runs for one in run.records if one.status == 429 and one.silent]
    found.append(rejection_figure("time to 429, p99", seconds, REJECTION))
    bare_http_s = [value for run in over for value in run.bare_http_s]
    bare_s = [value for run in over for value in run.bare_s]
    found.append(rejection_figure("time a server takes that only answers 429, p99", bare_http_s, informative("ms")))
    found.append(rejection_figure("time a server takes that only refuses over gRPC, p99", bare_s, informative("ms")))
    count = sum(len(run.records) for run in runs)
    found.append(counted("429 without Retry-After", len(silent), count, at_most(0)))
    found.append(counted("other errors", len(others), count, at_most(0)))
    found.append(fairness_figure([each[-1].jain() for each in rounds]))
    return found


if __name__ == "__main__":
    raise SystemExit(main())

"""`pentimento bench load`: play a workload on a suite, and keep its records."""

import asyncio
import gc
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from lab.commands.report import FILE, PRESENT, SEED, check_forms, report_of, report_options, show
from lab.emulation.fleet_file import label_of
from lab.runs import RequestRecord, Run, save_run
from lab.runs.answers import GENERATOR, ReceivedAnswer
from lab.runs.figures import Spread
from lab.runs.load import LoadSettings, play
from lab.workloads import Content, SloClass, Workload, load_workload, poisson
from pentimento.cli.connection import connection_options, frontdoor_address, read_token
from pentimento.cli.options import FINITE
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import CacheMode, Completed
from pentimento.files.json_values import check_folder
from pentimento.files.lines import read_prompts
from pentimento.sdk.client import AsyncClient

PROMPT = "a red circle"
# Record the server's answers: a client that retries would hide them.
ONCE = RetryPolicy(tries=1)


def run_load(path: Path | None, address: str, tokens: Mapping[str, str], options: Mapping[str, Any]) -> None:
    check_forms(options["reports"], 1)
    if options["save"] is not None:
        check_folder("save", options["save"])
    workload = load_workload(path) if path is not None else make_workload(options)
    if options["first"] is not None:
        workload = workload.first(options["first"])
    settings = LoadSettings(
        send_deadline=not options["hide_deadlines"],
        grace_s=options["grace"],
        cache=CacheMode.OFF if options["no_cache"] else None,
        detailed_stages=options["detailed_stages"],
    )
    gc.freeze()  # A full collection would hold arrivals up, and count as the server's time.
    run = asyncio.run(run_of(workload, address, tokens, options["tls_dir"], settings, options["name"]))
    try:
        if options["save"] is not None:
            save_run(run, options["save"])
    finally:
        # Print the report even if the file could not be written: the run took long.
        show([report_of(run, options["warm_up"])], options["reports"], as_json=options["as_json"])
    if run.provenance.get("interrupted"):
        raise click.Abort


def make_workload(options: Mapping[str, Any]) -> Workload:
    """Poisson arrivals of what the options say."""
    prompts = read_prompts(options["prompts"]) if options["prompts"] is not None else (PROMPT,)
    content = Content(
        prompts,
        slo_classes=(SloClass("standard", options["deadline"]),),
        steps=options["steps"],
        model=options["model"],
        sources=() if options["prompts"] is None else (options["prompts"].name,),
    )
    made = poisson(options["rate"], options["duration"], np.random.default_rng(options["seed"]), content)
    return Workload(made.name, made.arrivals, {**made.provenance, "seed": options["seed"]})


async def run_of(
    workload: Workload,
    address: str,
    tokens: Mapping[str, str],
    tls_dir: Path | None,
    settings: LoadSettings,
    name: str = "",
) -> Run:
    """Play the workload, and note the suite's properties. Cancelling the task, or SIGTERM, ends the run and is noted:
    running requests are cancelled, unsent ones have no record."""
    seen = _Seen()
    interrupted = False
    async with AsyncExitStack() as stack:
        clients = {
            tenant: await stack.enter_async_context(AsyncClient(address, token=token, retries=ONCE, tls_dir=tls_dir))
            for tenant, token in tokens.items()
        }
        # Report a missing suite once, not per request.
        await next(iter(clients.values())).list_models()
        began_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        # as Ctrl-C does; only the main thread receives signals
        with suppress(RuntimeError):
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            records = await play(workload, clients, settings, score=seen.score, on_answer=seen.count)
        except asyncio.CancelledError:
            interrupted = True
            records = sorted(seen.records, key=lambda record: record.arrived_s)
    kind = "emulated" if seen.emulated else "live"
    provenance = {
        "kind": kind,
        "began_at": began_at,
        "workload": {"name": workload.name, **workload.provenance},
        "builds": sorted(seen.builds),
        "reasons": dict(sorted(seen.reasons.items())),
        "generator_late_s": lateness(records),
        **({"interrupted": True} if interrupted else {}),
    }
    return Run(name or kind, provenance, tuple(records))


def lateness(records: Sequence[RequestRecord]) -> dict[str, float]:
    """How late requests were sent: where this is near the latencies, the figures are of the generator."""
    late = [stage.ended_s - stage.began_s for record in records for stage in record.stages if stage.name == GENERATOR]
    spread = Spread.of(late or [0.0])
    if spread.p99 > 0.1:
        click.echo(
            f"pentimento: requests were sent up to {spread.p99:.2f} s late (p99): too much load for it", err=True
        )
    return {"p50": spread.p50, "p99": spread.p99}


class _Seen:
    """Properties of the suite, from its answers."""

    def __init__(self) -> None:
        self.emulated = False
        self.records: list[RequestRecord] = []
        self.builds: set[str] = set()
        self.reasons: Counter[str] = Counter()

    def count(self, record: RequestRecord, received: ReceivedAnswer) -> None:
        """Keep the record of an ended request; without an image also the error's reason."""
        self.records.append(record)
        if not record.outcome.answered:
            self.reasons[received.error.reason if received.error is not None else "NO_ANSWER"] += 1

    def score(self, completed: Completed) -> float | None:
        """Return the quality from an emulated image's label; live images have none."""
        self.builds.add(completed.provenance.build_version)
        label = label_of(completed.image)
        self.emulated |= any(note.startswith("emulated") for note in completed.provenance.notes)
        return None if label is None else label.quality


@click.command()
@click.argument("workload", type=PRESENT, required=False)
@click.option("--rate", type=FINITE, default=1.0, show_default=True, help="requests a second, without a WORKLOAD")
@click.option("--duration", type=FINITE, default=60.0, show_default=True, metavar="SECONDS", help="without a WORKLOAD")
@click.option("--prompts", type=PRESENT, help="prompts in order (.txt, .tsv, .csv, .jsonl), without a WORKLOAD")
@click.option("--deadline", type=FINITE, default=60.0, show_default=True, metavar="SECONDS", help="without a WORKLOAD")
@click.option("--steps", type=int, default=50, show_default=True, help="without a WORKLOAD")
@click.option("--model", default="", help="without a WORKLOAD; the suite's own choice otherwise")
@click.option("--seed", type=SEED, default=0, show_default=True, help="of the arrivals, without a WORKLOAD")
@click.option("--first", type=click.IntRange(min=1), metavar="N", help="only the first N arrivals")
@click.option("--save", type=FILE, help="write the records of the run (.jsonl or .jsonl.gz)")
@click.option("--name", default="", help="of the run")
@click.option("--hide-deadlines", is_flag=True, help="keep the deadlines from the suite: it drops nothing by them")
@click.option("--no-cache", is_flag=True, help="neither start from the cache nor write to it")
@click.option("--grace", type=FINITE, default=30.0, show_default=True, metavar="SECONDS", help="past each deadline")
@click.option("--detailed-stages", is_flag=True, help="keep the stages inside workers apart")
@click.option("--tenant-token", multiple=True, metavar="TENANT=TOKEN", help="tokens of tenants; @FILE as for --token")
@report_options
@connection_options
def load(workload: Path | None, **options: Any) -> None:
    """Plays a WORKLOAD file (or Poisson arrivals) on a running suite, open-loop: no request waits for another's image,
    and a latency counts from the time the request was due. Prints the run's report, also of a run that Ctrl-C ends:
    running requests are cancelled then."""
    address = frontdoor_address(options)
    tokens = {"": read_token(options["token"])} | dict(_tenant_token(given) for given in options["tenant_token"])
    run_load(workload, address, tokens, options)


def _tenant_token(given: str) -> tuple[str, str]:
    tenant, equals, token = given.partition("=")
    if not (tenant and equals):
        raise InvalidArgument.of("tenant-token", "must be TENANT=TOKEN")
    return tenant, read_token(token)

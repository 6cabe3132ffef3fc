"""`pentimento bench profile | selector-profile | thinning-profile | handover-profile | lora-bound | load | report |
trace-study`."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import click

from pentimento.cli.connection import connection_options, frontdoor_address, read_token, tls_options, token_option
from pentimento.cli.forwarding import ForwardingCommand
from pentimento.cli.json_output import json_option
from pentimento.cli.numbers import FINITE, FiniteRange
from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.child import source_path
from pentimento.supervisor.models import DEFAULT_ENCODER, find_encoder, find_loras, find_model

FILE = click.Path(dir_okay=False, path_type=Path)
SEED = click.IntRange(min=0)
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def bench() -> None:
    """Measures this machine, or a suite under load."""


@bench.command(cls=ForwardingCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def profile(model: str, flags: tuple[str, ...]) -> None:
    """Writes what MODEL (a registry name or a diffusers directory) costs here: seconds of a denoising step by size and
    batch, and memory. `pentimento bench profile MODEL --help` lists the FLAGS."""
    os.environ["PYTHONPATH"] = source_path()
    command = [sys.executable, "-P", "-m", "services.unet_worker.profile", "--model", str(find_model(model).path)]
    os.execv(sys.executable, [*command, *flags])


@bench.command("selector-profile", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option(
    "--prompts", type=PRESENT, required=True, help="prompts in the order they came (.txt, .tsv, .csv, .jsonl)"
)
@click.option("--small", metavar="MODEL", help="profile the images too that this model refines, against MODEL's own")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder that the cache searches by")
@click.option("--embedder-address", help="an embedder that runs already, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def selector_profile(
    model: str, prompts: Path, small: str | None, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Writes from which similarity of two prompts on MODEL (a registry name or a diffusers directory) may start from
    the other's latents, so that the picture keeps its quality (NIRVANA, Algorithm 1). Paints every prompt from scratch
    and from the nearest one before it: minutes for hundreds of them. `python -m services.unet_worker.selector_profile
    --help` lists the FLAGS beside these."""
    arguments = ["--model", str(find_model(model).path), "--prompts", str(prompts), *flags]
    if small is not None:
        arguments += ["--small-model", str(find_model(small).path)]
    _run_with_encoder("services.unet_worker.selector_profile", arguments, encoder, embedder_address)


@bench.command("thinning-profile", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--prompts", type=PRESENT, required=True, help="prompts to paint (.txt, .tsv, .csv, .jsonl)")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder that measures quality")
@click.option("--embedder-address", help="an embedder that runs already, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def thinning_profile(
    model: str, prompts: Path, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Writes how many steps of MODEL (a registry name or a diffusers directory) may be left out, and from which step
    on, so that the picture keeps its quality. Paints every prompt with all steps and with ever fewer of them: minutes
    for hundreds of them. `python -m services.unet_worker.thinning_profile --help` lists the FLAGS beside these."""
    arguments = ["--model", str(find_model(model).path), "--prompts", str(prompts), *flags]
    _run_with_encoder("services.unet_worker.thinning_profile", arguments, encoder, embedder_address)


@bench.command("handover-profile", context_settings={"ignore_unknown_options": True})
@click.argument("light")
@click.argument("heavy")
@click.option("--prompts", type=PRESENT, required=True, help="prompts to paint (.txt, .tsv, .csv, .jsonl)")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder that measures quality")
@click.option("--embedder-address", help="an embedder that runs already, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def handover_profile(
    light: str, heavy: str, prompts: Path, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Writes how many of HEAVY's steps a cascade may leave out because HEAVY starts from LIGHT's picture (registry
    names or diffusers directories), so that its own keep their quality (DiffServe, section 5). Paints every prompt with
    both, and with HEAVY from LIGHT's pictures: minutes for hundreds of them. `python -m
    services.unet_worker.handover_profile --help` lists the FLAGS beside these."""
    arguments = ["--model", str(find_model(heavy).path), "--light-model", str(find_model(light).path)]
    arguments += ["--prompts", str(prompts), *flags]
    _run_with_encoder("services.unet_worker.handover_profile", arguments, encoder, embedder_address)


def _run_with_encoder(module: str, arguments: list[str], encoder: str, embedder_address: str | None) -> None:
    """Become `python -m module`, by an embedder that runs or beside one that is started for it."""
    if embedder_address is not None:
        os.environ["PYTHONPATH"] = source_path()
        command = [sys.executable, "-P", "-m", module, *arguments, "--embedder-address", embedder_address]
        os.execv(sys.executable, command)
    from pentimento.supervisor.beside_embedder import run_beside_embedder

    sys.exit(asyncio.run(run_beside_embedder(find_encoder(encoder).path, module, arguments)))


@bench.command("lora-bound", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--loras", required=True, metavar="tiny|DIR", help="directory of LoRAs; `tiny`: those of the tiny models")
@click.option("--prompts", type=PRESENT, required=True, help="prompts to paint (.txt, .tsv, .csv, .jsonl)")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def lora_bound(model: str, loras: str, prompts: Path, flags: tuple[str, ...]) -> None:
    """Writes how many steps of MODEL (a registry name or a diffusers directory) may run before each LoRA of a directory
    takes effect, so that the picture stays what it is with the LoRA from the start (Katz, section 6). Paints every
    prompt without, with and with a late LoRA: minutes a LoRA. `python -m services.unet_worker.lora_bound --help` lists
    the FLAGS beside these."""
    os.environ["PYTHONPATH"] = source_path()
    directory = find_loras(loras)
    if directory is None:
        raise InvalidArgument.of("loras", "must name a directory")
    arguments = ["--model", str(find_model(model).path), "--loras", str(directory), "--prompts", str(prompts)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "services.unet_worker.lora_bound", *arguments, *flags])


def report_options(command: Any) -> Any:
    """Where a report goes besides the terminal, and what of the run it leaves out."""
    for option in (
        click.option(
            "--warm-up", type=FiniteRange(min=0.0), default=0.0, metavar="SECONDS", help="leave the first requests out"
        ),
        click.option(
            "-r",
            "--report",
            "reports",
            type=FILE,
            multiple=True,
            help="write the report there too: .html, .json (of one run), .png or .txt",
        ),
    ):
        command = option(command)
    return command


@bench.command()
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
@json_option
@connection_options
def load(workload: Path | None, **options: Any) -> None:
    """Plays a WORKLOAD file (or Poisson arrivals) on a running suite, open-loop: nobody waits for anybody else's
    picture, and a latency counts from when the request was due. Prints the run's report, also of a run that Ctrl-C
    ends: what was under way then is cancelled."""
    from pentimento.cli.bench_load import run_load

    address = frontdoor_address(options["address"], options["state_dir"])
    tokens = {"": read_token(options["token"])} | dict(_tenant_token(given) for given in options["tenant_token"])
    run_load(workload, address, tokens, options)


@bench.command()
@click.argument("runs", type=PRESENT, nargs=-1, required=True)
@report_options
@json_option
def report(runs: tuple[Path, ...], warm_up: float, reports: tuple[Path, ...], as_json: bool) -> None:
    """Lays RUNS (records that `bench load --save`, an emulated fleet or a simulation wrote) side by side."""
    from pentimento.cli.bench_report import tell

    tell(runs, warm_up, reports, as_json=as_json)


@bench.command()
@click.argument("record", type=PRESENT)
@click.option(
    "--run", type=PRESENT, help="records of `bench load --save` at the same time: latency, violations, quality"
)
@click.option("-o", "--output", type=FILE, required=True, help="where it is drawn: .svg or .png")
def allocation(record: Path, run: Path | None, output: Path) -> None:
    """Draws a RECORD of `pentimento status --watch --record`: workers by model, thresholds, admission and violations
    over time."""
    from pentimento.cli.bench_allocation import draw

    draw(record, run, output)


@bench.command("trace-study")
@click.argument("log", type=PRESENT)
@click.option("--embeddings", type=PRESENT, metavar="FILE.npy", help="the prompts' vectors, a row each in order")
@click.option("--embedder-address", metavar="ADDRESS", help="an embedder that computes them, instead of --embeddings")
@click.option("--save-embeddings", type=FILE, metavar="FILE.npy", help="keep what the embedder computed")
@click.option(
    "--thresholds", metavar="COS:SHARE,…", help="cosine from which on a share of the steps is saved [NIRVANA's]"
)
@click.option(
    "--warm-up", type=int, default=0, metavar="N", help="the first N prompts fill caches and count for nothing"
)
@click.option("--window-s", type=FINITE, default=86_400.0, show_default=True, help="window of the clusters, in seconds")
@click.option("--window-prompts", type=int, help="the same for a log without times [a tenth of it]")
@click.option("--session-s", type=FINITE, default=3_600.0, show_default=True, help="length of a user's session")
@click.option("--seed", type=SEED, default=0, show_default=True, help="of the other users that one is compared with")
@click.option(
    "-r", "--report", "reports", type=FILE, multiple=True, help="write it there too: .json, .txt, .svg or .png"
)
@json_option
@tls_options
@token_option
def trace_study(log: Path, **options: Any) -> None:
    """Studies a LOG of prompts (.txt, .tsv, .csv, .jsonl or a workload): what caches of any size could reuse of it, how
    old donors are, how long clusters live, how alike prompts of sessions and users are."""
    from pentimento.cli.bench_trace import tell_study

    tell_study(log, options)


def _tenant_token(given: str) -> tuple[str, str]:
    tenant, equals, token = given.partition("=")
    if not (tenant and equals):
        raise InvalidArgument.of("tenant-token", "must be TENANT=TOKEN")
    return tenant, read_token(token)

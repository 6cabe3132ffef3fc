"""`pentimento bench trace-study`: the log, its vectors, the study, where it goes."""

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from lab.commands.journal_log import read_journal_log
from lab.commands.report import FILE, PRESENT, SEED
from lab.runs import check_png, save_panels, sheet_svg
from lab.runs.page import STYLE
from lab.studies import (
    NIRVANA_SAVINGS,
    PromptLog,
    StudySettings,
    TraceStudy,
    make_study,
    parse_table,
    read_prompt_log,
    study_as_json,
    study_as_text,
    study_panels,
    with_production_times,
)
from lab.workloads.readers import read_embeddings, read_production_requests
from pentimento.cli.connection import read_token, tls_option, token_option
from pentimento.cli.options import FINITE, json_option, say
from pentimento.clients.embedder import EmbedderClient
from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import check_folder
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.rpc.settings import client_settings

FORMS = (".json", ".png", ".svg", ".txt")
# Below the embedder's own limit of texts in a call.
BATCH = 32
TIMEOUT_S = 60.0
Vectors = npt.NDArray[np.float32]


def tell_study(path: Path | None, options: Mapping[str, Any]) -> None:
    """Print the study of a log and write its reports. All options are validated before it is computed."""
    if (path is None) == (options["journal"] is None):
        raise click.UsageError("LOG must be given, or else --journal, and not both")
    check_study_options(options)
    settings = StudySettings(
        table=NIRVANA_SAVINGS if options["thresholds"] is None else parse_table(options["thresholds"]),
        warm_up=options["warm_up"],
        window_s=options["window_s"],
        window_prompts=options["window_prompts"],
        session_s=options["session_s"],
        seed=options["seed"],
    )
    log = read_journal_log(options["journal"]) if path is None else read_prompt_log(path)
    digests = {} if path is None else {"log_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    if options["times"] is not None:
        log = with_production_times(log, read_production_requests(options["times"]))
        digests["times_sha256"] = hashlib.sha256(options["times"].read_bytes()).hexdigest()
    vectors, encoder = _vectors(log, options)
    provenance = {**digests, "encoder": encoder}
    study = make_study(log, vectors, settings, provenance)
    if options["as_json"]:
        # JSON on standard output is one line; in a file it has many.
        say(json.loads(study_as_json(study)), "", as_json=True)
    else:
        click.echo(study_as_text(study), nl=False)
    for file in options["reports"]:
        write_study(study, file)


def check_study_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for reports that cannot be written, UsageError where vectors come from nowhere or twice."""
    for file in options["reports"]:
        if file.suffix not in FORMS:
            raise InvalidArgument.of("report", f"must end in one of {', '.join(FORMS)}, got {file.name}")
        check_folder("report", file)
        if file.suffix == ".png":
            check_png()
    if (options["embeddings"] is None) == (options["embedder_address"] is None):
        raise click.UsageError("--embeddings must be given, or else --embedder-address, and not both")
    if options["save_embeddings"] is not None:
        if options["embedder_address"] is None:
            raise click.UsageError("--save-embeddings must come with --embedder-address")
        check_folder("save-embeddings", options["save_embeddings"])


def write_study(study: TraceStudy, file: Path) -> None:
    """Write the form that the file's name says."""
    title = f"{study.name}: {study.prompt_count} prompts"
    if file.suffix == ".png":
        save_panels(study_panels(study), file, title)
    elif file.suffix == ".svg":
        file.write_text(sheet_svg(title, study_panels(study), STYLE), "utf-8")
    else:
        file.write_text((study_as_json if file.suffix == ".json" else study_as_text)(study), "utf-8")


def _vectors(log: PromptLog, options: Mapping[str, Any]) -> tuple[Vectors, str]:
    """The vectors, and what gave them."""
    if options["embeddings"] is not None:
        return read_embeddings(options["embeddings"], len(log.prompts)), options["embeddings"].name
    token, channels = read_token(options["token"]) or None, client_settings(options["tls_dir"])
    vectors, digest = asyncio.run(embed_prompts(options["embedder_address"], token, log.prompts, channels=channels))
    if options["save_embeddings"] is not None:
        with options["save_embeddings"].open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
    return vectors, digest


async def embed_prompts(
    address: str,
    token: str | None,
    prompts: Sequence[str],
    batch: int = BATCH,
    channels: RpcChannelSettings | None = None,
) -> tuple[Vectors, str]:
    """Return a unit vector for each prompt (n, width) and the encoder's digest. Equal prompts are embedded once,
    `batch` per call."""
    distinct = list(dict.fromkeys(prompts))
    rows: list[Vectors] = []
    digest = ""
    async with open_channel(address, channels or RpcChannelSettings(), token) as channel:
        client = EmbedderClient(channel)
        for start in range(0, len(distinct), batch):
            answers = await client.embed_text(distinct[start : start + batch], TIMEOUT_S)
            rows += [np.frombuffer(answer.values, "<f4") for answer in answers]
            digest = answers[0].encoder_digest
    place = {prompt: row for row, prompt in enumerate(distinct)}
    return np.stack(rows)[[place[prompt] for prompt in prompts]], digest


@click.command("trace-study")
@click.argument("log", type=PRESENT, required=False)
@click.option(
    "--journal",
    metavar="DIR|URL",
    help="the requests of a suite instead of LOG: its state directory, or its frontdoor's ledger URL",
)
@click.option(
    "--times",
    type=PRESENT,
    metavar="FILE.csv",
    help="users and times of a production log for the prompts of LOG, in order: a composite",
)
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
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="of the other users that one is compared with",
)
@click.option(
    "-r", "--report", "reports", type=FILE, multiple=True, help="write it there too: .json, .txt, .svg or .png"
)
@json_option
@tls_option
@token_option
def trace_study(log: Path | None, **options: Any) -> None:
    """Studies a LOG of prompts (.txt, .tsv, .csv, .jsonl or a workload), or a suite's own requests: what caches of any
    size could reuse of it, the age of donors, the lifetime of clusters, the similarity of prompts within sessions and
    users."""
    tell_study(log, options)

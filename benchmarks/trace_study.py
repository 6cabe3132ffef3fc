"""Study real prompt logs, and compare with the papers' findings on theirs.

    python -m benchmarks.trace_study --data DIR [--times FILE.csv] [--encoder all-minilm-l6-v2]

DIR holds the logs of LOGS, gzipped; the first COUNT prompts of each are used, since hit rates grow with a log. They are
DiffusionDB's in published order; the same shuffled (a control without locality); prompts chosen for their diversity;
and captions of photographs, which are not a sequence of requests (a second control). Prompts are neither shown nor
stored.

FILE is a production log of times and users. With it DiffusionDB's prompts get them in the order of both, as do the
shuffled prompts. Both are composites: no user wrote the prompts that the log gives it, so the shuffled one says which
part of a similarity comes from the texts' order.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch

from lab.runs import save_panels
from lab.runs.measure import PLOTS, Figure, informative, measured, parse_options, publish
from lab.studies import (
    NIRVANA_SAVINGS,
    PromptLog,
    StudySettings,
    TraceStudy,
    make_study,
    read_prompt_log,
    study_panels,
    with_production_times,
)
from lab.studies.neighbours import TIE, Vectors, nearest_of_misses
from lab.studies.reuse import LogReuse, saved_by
from lab.workloads.readers import ProductionRequest, read_production_requests
from pentimento.supervisor.models import find_encoder
from services.embedder.model import EmbeddingModel, open_model

LOGS = {
    "DiffusionDB": "diffusiondb_2m_first3500.txt.gz",
    "ImageReward's choice": "imagereward_diffusiondb.tsv.gz",
    "COCO captions": "coco2014val_5k_captions.tsv.gz",
}
ORDERED, SHUFFLES = "DiffusionDB", 5
SIZES = (10, 300, 3_000)
COUNT, QUICK_COUNT = 3_500, 300
BATCH = 16
BLOCK = 100
LOWEST = min(rule.min_similarity for rule in NIRVANA_SAVINGS)
# the papers', over DiffusionDB's two million prompts with CLIP's embeddings
NIRVANA_HIT_RATES = {300: "NIRVANA, 1,500 latents: 58", 3_000: "NIRVANA, 15,000 latents: 68"}
NIRVANA_SAVED = {300: "NIRVANA, 1,500 latents: 11", 3_000: "NIRVANA, 15,000 latents: 13"}


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StudiedLog:
    """Hold a log in its order, with a unit vector for each prompt (n, width)."""

    name: str
    log: PromptLog
    vectors: Vectors


def main() -> int:
    options = parse_options("trace_study", __doc__, add_options)
    torch.set_num_threads(1)
    model = open_model(find_encoder(options.rest["encoder"]).path)
    logs = [read_log(name, options.rest["data"] / file, model, options.quick) for name, file in LOGS.items()]
    figures = [figure for log in logs for figure in (*reuse_figures(log), *longevity_figures(log))]
    figures += shuffled_figures(logs[0])
    if options.rest["times"] is not None:
        figures += composite_figures(logs[0], read_production_requests(options.rest["times"]))
    if not options.quick:
        draw(logs[0])
    return publish(options, figures, notes={"encoder": model.name})


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="directory of the logs")
    parser.add_argument("--times", type=Path, help="production log of times and users, for the composites")
    parser.add_argument("--encoder", default="all-minilm-l6-v2", help="name or directory of an encoder")


def read_log(name: str, path: Path, model: EmbeddingModel, quick: bool) -> StudiedLog:
    log = read_prompt_log(path)
    prompts = log.prompts[: QUICK_COUNT if quick else COUNT]
    rows: dict[str, Vectors] = {}
    # one length per batch, so that little of it is padding
    distinct = sorted(set(prompts), key=len)
    with torch.inference_mode():
        for start in range(0, len(distinct), BATCH):
            texts = distinct[start : start + BATCH]
            rows |= zip(texts, (np.frombuffer(one, "<f4") for one in model.embed_texts(texts)), strict=True)
    return StudiedLog(name, PromptLog(log.name, prompts), np.stack([rows[prompt] for prompt in prompts]))


def reuse_figures(studied: StudiedLog) -> list[Figure]:
    """Report hit rates and savings of FIFO caches and of caches without bounds, and donors' ages."""
    reuse = LogReuse.of(studied.vectors, NIRVANA_SAVINGS)
    distances = np.stack([reuse.neighbours.distances(row) for row in range(len(NIRVANA_SAVINGS))])
    shares = np.asarray([rule.saved_share for rule in NIRVANA_SAVINGS])[:, None]
    figures = []
    for size in [size for size in SIZES if size < len(studied.vectors)]:
        hits = distances <= size
        figures.append(
            share(f"{studied.name}: hit rate, FIFO of {size}{beside(NIRVANA_HIT_RATES, size)}", np.asarray(hits.any(0)))
        )
        saved = (hits * shares).max(axis=0)
        figures.append(mean(f"{studied.name}: steps saved, FIFO of {size}{beside(NIRVANA_SAVED, size)}", saved))
    similarity = reuse.neighbours.similarity
    hits = similarity >= LOWEST - TIE
    misses = nearest_of_misses(studied.vectors, LOWEST)
    alone = saved_by(misses, NIRVANA_SAVINGS)
    back = np.where(hits, np.arange(len(hits)) - reuse.neighbours.donor, 0)
    return [
        *figures,
        share(f"{studied.name}: hit rate without bounds (NIRVANA 88, MoDM 92.8 at 100,000)", hits),
        mean(f"{studied.name}: steps saved without bounds, all enter", saved_by(similarity, NIRVANA_SAVINGS)),
        mean(f"{studied.name}: steps saved without bounds, misses enter (NIRVANA 21)", alone),
        share(f"{studied.name}: hits whose nearest donor is at most 1,000 prompts back", back <= 1_000, hits),
    ]


def longevity_figures(studied: StudiedLog) -> list[Figure]:
    """Report the top clusters' share one window (a tenth of the log) later; not every eps has a cluster."""
    settings = StudySettings(top_percents=(10.0,))
    study = make_study(studied.log, studied.vectors, settings)
    name = f"{studied.name}: top 10 % of clusters still there a tenth of the log later, eps"
    return [
        Figure(f"{name} {row.eps:g}", 100 * row.share, informative("%"), 1)
        for row in study.longevity
        if row.lag == 1 and row.share is not None
    ]


def shuffled_figures(studied: StudiedLog) -> list[Figure]:
    """Report the same prompts in random orders; a sample is a shuffle."""
    rates: dict[int, list[float]] = {size: [] for size in SIZES if size < len(studied.vectors)}
    for seed in range(SHUFFLES):
        order = np.random.default_rng(seed).permutation(len(studied.vectors))
        distances = LogReuse.of(studied.vectors[order], NIRVANA_SAVINGS[:1]).neighbours.distances(0)
        for size, found in rates.items():
            found.append(100 * float((distances <= size).mean()))
    name = f"{studied.name}, shuffled: hit rate, FIFO of"
    return [measured(f"{name} {size}", found, fmean, informative("%")) for size, found in rates.items()]


def composite_figures(studied: StudiedLog, requests: Sequence[ProductionRequest]) -> list[Figure]:
    """Report longevity by day, and similarity within, between and across sessions, of the composites."""
    timed = with_production_times(studied.log, requests)
    shuffled = np.random.default_rng(0).permutation(len(timed.prompts))
    mixed = replace(timed, prompts=tuple(timed.prompts[row] for row in shuffled))
    vectors = studied.vectors[: len(timed.prompts)]
    settings = StudySettings(top_percents=(10.0,))
    named = (
        (f"{studied.name}, composite", make_study(timed, vectors, settings)),
        (f"{studied.name}, composite, shuffled", make_study(mixed, vectors[shuffled], settings)),
    )
    return [figure for name, study in named for figure in (*daily_figures(name, study), *session_figures(name, study))]


def daily_figures(name: str, study: TraceStudy) -> list[Figure]:
    """Report the top clusters' share a day later (NIRVANA, figure 5), of every `eps` with a cluster."""
    return [
        Figure(
            f"{name}: top 10 % of clusters still there a day later, eps {row.eps:g}",
            100 * row.share,
            informative("%"),
            row.base_count,
        )
        for row in study.longevity
        if row.lag == 1 and row.share is not None
    ]


def session_figures(name: str, study: TraceStudy) -> list[Figure]:
    """Report the mean over users of the mean cosine of their pairs (NIRVANA, figure 7)."""
    assert study.sessions is not None
    spreads = {
        "within a session of an hour": study.sessions.within,
        "between a user's sessions": study.sessions.between,
        "with other users": study.sessions.across,
    }
    return [
        Figure(f"{name}: cosine {kind}", spread.mean, informative(""), spread.user_count)
        for kind, spread in spreads.items()
        if spread.mean is not None
    ]


def share(name: str, hits: np.ndarray, of: np.ndarray | None = None) -> Figure:
    """Report a share of prompts; samples are blocks of consecutive ones."""
    among = np.ones(len(hits), bool) if of is None else of
    return measured(name, counts(hits & among, among), percent, informative("%"))


def mean(name: str, values: np.ndarray) -> Figure:
    blocks = [float(100 * values[start : start + BLOCK].mean()) for start in range(0, len(values), BLOCK)]
    return measured(name, blocks, fmean, informative("%"))


def counts(hits: Mask, of: Mask) -> list[tuple[int, int]]:
    """Return hits and prompts by blocks of prompts, which the interval draws: neighbours are alike."""
    starts = range(0, len(of), BLOCK)
    return [(int(hits[start : start + BLOCK].sum()), int(of[start : start + BLOCK].sum())) for start in starts]


def percent(blocks: Sequence[tuple[int, int]]) -> float:
    return 100.0 * sum(hits for hits, _ in blocks) / max(1, sum(of for _, of in blocks))


def beside(figures: dict[int, str], size: int) -> str:
    return f" ({figures[size]})" if size in figures else ""


def draw(studied: StudiedLog) -> None:
    study = make_study(studied.log, studied.vectors, StudySettings())
    title = f"{studied.name}, first {study.prompt_count} prompts in published order"
    PLOTS.mkdir(parents=True, exist_ok=True)
    save_panels(study_panels(study), PLOTS / "trace-study.png", title)


if __name__ == "__main__":
    raise SystemExit(main())

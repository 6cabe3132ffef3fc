"""Check that made-up scene logs have the shares and ages that they are written to: DiffusionDB's.

    python -m benchmarks.scene_log [--encoder DIR] [--count 3500]

An acceptance test of `zoo.scene_log`, not a reproduction: the log is written to DiffusionDB's figures, under the
encoder, and is then measured as any log would be. Beside it stands the control: scenes drawn independently, which is
what the zoo's models were trained on and what no user does.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.report import Figure, between, informative, measured, parse_options, publish
from zoo.registry import WEIGHTS
from zoo.scene_edits import fresh
from zoo.scene_log import (
    DIFFUSIONDB_AGES,
    DIFFUSIONDB_SHARES,
    SAME,
    THRESHOLDS,
    Embed,
    Vectors,
    clip_embedder,
    reuse,
    write_scene_log,
)

TOLERANCE = 3.0
AGE_TOLERANCE = 5.0
QUICK_COUNT = 300
BLOCK = 100

Mask = npt.NDArray[np.bool_]


def main() -> int:
    options = parse_options("scene_log", __doc__, add_options)
    torch.set_num_threads(options.rest["threads"])
    count = QUICK_COUNT if options.quick else options.rest["count"]
    embed = clip_embedder(options.rest["encoder"])
    rng = np.random.default_rng(options.rest["seed"])
    log = write_scene_log(count, embed, rng)
    figures = [*nearness(log.embeddings), *ages(log.embeddings, count), *control(embed, count, rng)]
    notes = {
        "encoder": options.rest["encoder"].name,
        "count": count,
        "seed": options.rest["seed"],
        "composite": "scenes of the zoo, similarities and reuse ages of DiffusionDB (CC0; MiniLM embeddings)",
        "age tolerance": f"ours: {AGE_TOLERANCE:g} points, for ages up to a third of the log",
    }
    return publish(options, figures, notes=notes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoder", type=Path, default=WEIGHTS / "tiny-clip", help="a CLIPModel directory")
    parser.add_argument(
        "--count", type=int, default=3500, help="prompts, as many as DiffusionDB's ages were taken from"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)


def nearness(embeddings: Vectors) -> list[Figure]:
    similarity, _ = reuse(embeddings)
    everyone = np.ones(len(similarity), bool)
    figures = []
    for threshold, share in zip(THRESHOLDS, DIFFUSIONDB_SHARES, strict=True):
        target = between(100 * share - TOLERANCE, 100 * share + TOLERANCE, "%")
        blocks = counts(similarity > threshold, everyone)
        figures.append(
            measured(
                f"acceptance: nearest previous above {threshold:.2f} (DiffusionDB {100 * share:.0f})",
                blocks,
                percent,
                target,
            )
        )
    repeated = counts(similarity > SAME, everyone)
    return [*figures, measured("acceptance: repeated (DiffusionDB 13)", repeated, percent, informative("%"))]


def ages(embeddings: Vectors, count: int) -> list[Figure]:
    """Of the prompts that come back; ages near the log's length say more of the length than of the users."""
    similarity, age = reuse(embeddings)
    reused = similarity > THRESHOLDS[0]
    figures = []
    for oldest, share in DIFFUSIONDB_AGES.items():
        low, high = 100 * share - AGE_TOLERANCE, 100 * share + AGE_TOLERANCE
        target = between(low, high, "%") if 3 * oldest <= count and count > QUICK_COUNT else informative("%")
        name = f"acceptance: reused within {oldest} requests (DiffusionDB {100 * share:.0f})"
        figures.append(measured(name, counts(reused & (age <= oldest), reused), percent, target))
    return figures


def control(embed: Embed, count: int, rng: np.random.Generator) -> list[Figure]:
    texts = [fresh(rng).text for _ in range(count)]
    vectors = np.concatenate([embed(texts[start : start + BLOCK]) for start in range(0, count, BLOCK)])
    similarity, _ = reuse(vectors)
    everyone = np.ones(len(similarity), bool)
    return [
        measured(
            f"control, independent scenes above {threshold:.2f}",
            counts(similarity > threshold, everyone),
            percent,
            informative("%"),
        )
        for threshold in THRESHOLDS
    ]


def counts(hits: Mask, of: Mask) -> list[tuple[int, int]]:
    """By blocks of consecutive prompts, which are what is redrawn for the interval: neighbours are no strangers."""
    starts = range(0, len(of), BLOCK)
    return [(int(hits[start : start + BLOCK].sum()), int(of[start : start + BLOCK].sum())) for start in starts]


def percent(blocks: Sequence[tuple[int, int]]) -> float:
    return 100.0 * sum(hits for hits, _ in blocks) / max(1, sum(of for _, of in blocks))


if __name__ == "__main__":
    raise SystemExit(main())

"""Write a log of prompts that the zoo can draw and that repeat as real users' prompts do.

    python -m zoo.scene_log --out scenes.jsonl.gz --count 3500

In DiffusionDB (the first 3,500 and 5,000 prompts in published order, MiniLM embeddings) a prompt's nearest previous one
is above a cosine of 0.65 / 0.75 / 0.85 / 0.90 / 0.95 for 74 / 61 / 50 / 43 / 32 % of prompts, and mostly a few requests
old. Here every prompt gets the band of similarity with the largest deficit in the log, and an age from DiffusionDB's
prompts of that band; edits of the prompt of that age are tried until one has the similarity, under the log's dual
encoder. A composite, and labelled so: our scenes, statistics of DiffusionDB (CC0), times of a Poisson process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.workloads import Content, Workload, poisson, save_workload
from pentimento.domain.errors import InvalidArgument
from zoo.command import run
from zoo.scene_edits import Utterance, changed, fresh, reworded

Vectors = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
Edit = Callable[[Utterance, np.random.Generator], Utterance]

THRESHOLDS = (0.65, 0.75, 0.85, 0.90, 0.95)
DIFFUSIONDB_SHARES = (0.74, 0.61, 0.50, 0.43, 0.32)
SAME = 0.999
SHARES_OF_AGES = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 1.0)
ROUNDS = 4
CANDIDATES = 6
OCTAVES = 0.5  # an age within this many doublings of the drawn one is accepted


def _edit(changes: int, reword: bool) -> Edit:
    return lambda said, rng: changed(said, rng, changes, reword)


@dataclass(frozen=True)
class Band:
    """Describe similarities above `low` up to `high`, their share of prompts, quantiles of their ages at
    SHARES_OF_AGES, and the edits that lead there."""

    low: float
    high: float
    share: float
    ages: tuple[float, ...] = ()
    edits: tuple[Edit, ...] = ()

    def holds(self, similarity: float) -> bool:
        return self.low < similarity <= self.high

    def distance(self, similarity: float) -> float:
        return max(self.low - similarity, similarity - self.high, 0.0)

    def draw_age(self, rng: np.random.Generator, oldest: int) -> int:
        """Draw an age from 1 to `oldest`; between two quantiles all ratios are equally likely."""
        share = rng.uniform(0.0, _share_below(oldest, self.ages))
        return min(oldest, max(1, round(float(np.exp(np.interp(share, SHARES_OF_AGES, np.log(self.ages)))))))


def _share_below(age: int, ages: tuple[float, ...]) -> float:
    steps = np.arange(len(ages)) * 1e-9  # strictly ascending, for np.interp
    return float(np.interp(np.log(age), np.log(ages) + steps, SHARES_OF_AGES))


FRESH = Band(-1.0, 0.65, 0.26)
REPEATS = Band(SAME, 1.001, 0.13, (1, 1, 2, 3, 4, 8, 55, 244, 3160))
BANDS = (
    FRESH,
    Band(
        0.65, 0.75, 0.13, (1, 3, 5, 26, 260, 1037, 1736, 2122, 3265), (_edit(1, True), _edit(2, False), _edit(2, True))
    ),
    Band(
        0.75, 0.85, 0.11, (1, 2.1, 3, 6, 32.5, 263, 1050, 1956, 3145), (reworded, _edit(1, True), _edit(2, False))
    ),
    Band(0.85, 0.90, 0.07, (1, 2, 2, 5, 14, 192, 530, 1252, 3132), (reworded, _edit(1, False), _edit(1, True))),
    Band(0.90, 0.95, 0.11, (1, 2, 3, 4, 12, 81, 301, 953, 3349), (reworded, _edit(1, False))),
    Band(0.95, SAME, 0.19, (1, 1, 2, 3, 6, 17, 219, 315, 2489), (reworded, _edit(1, False))),
    REPEATS,
)  # fmt: skip


def denser_bands(share: float, above: float) -> tuple[Band, ...]:
    """Return bands with `share` (0..1) of all prompts at similarities from `above` on, and the rest below; each side
    keeps DiffusionDB's proportions, and every band its ages."""
    near = sum(band.share for band in BANDS if band.low >= above)
    far = sum(band.share for band in BANDS) - near
    if not (0 <= share <= 1 and near and far):
        raise InvalidArgument.of("share", f"must be between 0 and 1 and divide the bands, got {share} above {above}")
    return tuple(
        replace(band, share=band.share * (share / near if band.low >= above else (1 - share) / far)) for band in BANDS
    )


@dataclass(frozen=True)
class SceneLog:
    """Hold prompts in order with their unit embeddings (n, d), and each one's content (`Utterance.asked`)."""

    prompts: tuple[str, ...]
    embeddings: Vectors
    asked: tuple[tuple[int, ...], ...] = ()

    def content(self, **fields: Any) -> Content:
        """Return the content for any times (`lab.workloads`)."""
        return Content(self.prompts, self.embeddings, sources=SOURCES, **fields)


SOURCES = ("scenes of the zoo", "similarities and reuse ages of DiffusionDB (CC0)")


def write_scene_log(count: int, embed: Embed, rng: np.random.Generator, bands: tuple[Band, ...] = BANDS) -> SceneLog:
    """Return a log of `count` prompts; `embed` gives unit vectors (texts, d). The same generator state gives the same
    log. `bands` are BANDS, or ones with other shares."""
    if count < 1:
        raise InvalidArgument.of("count", f"must be at least 1, got {count}")
    writer = _Writer(embed, rng, bands)
    for _ in range(count):
        writer.add()
    asked = tuple(said.asked for said in writer.said)
    return SceneLog(tuple(writer.texts), writer.vectors[:count].copy(), asked)


@dataclass(frozen=True)
class _Tried:
    """Hold a candidate, with the distance of its similarity from the band and of its age from the drawn one."""

    misses: float
    octaves: float
    utterance: Utterance
    vector: Vectors
    similarity: float


@dataclass
class _Writer:
    embed: Embed
    rng: np.random.Generator
    bands: tuple[Band, ...] = BANDS
    said: list[Utterance] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    vectors: Vectors = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    counts: list[int] = field(default_factory=lambda: [0] * len(BANDS))
    newest: dict[str, int] = field(default_factory=dict)

    def add(self) -> None:
        """Add one prompt, in the band with the largest deficit."""
        if not self.said:
            first = fresh(self.rng)
            self._append(first, self.embed([first.text])[0], -1.0)
            return
        band = self.bands[self._next_band()]
        if band.low >= SAME:
            row = self._row_to_repeat()
            self._append(self.said[row], self.vectors[row], 1.0)
        else:
            self._append(*self._search(band))

    def _next_band(self) -> int:
        total = len(self.said) + 1
        lacking = [max(0.02, band.share * total - count) for band, count in zip(self.bands, self.counts, strict=True)]
        return int(self.rng.choice(len(self.bands), p=np.asarray(lacking) / sum(lacking)))

    def _row_to_repeat(self) -> int:
        """Return a row of the drawn age without a later repeat, or the newest of the tried ones."""
        rows = [len(self.said) - REPEATS.draw_age(self.rng, len(self.said)) for _ in range(CANDIDATES)]
        return next((row for row in rows if self.newest[self.texts[row]] == row), max(rows))

    def _search(self, band: Band) -> tuple[Utterance, Vectors, float]:
        """Return the best candidate, trying no more than needed for one in the band and of the right age."""
        tried: list[_Tried] = []
        for _ in range(ROUNDS):
            candidates, wanted = self._candidates(band)
            vectors = self.embed([candidate.text for candidate in candidates])
            for candidate, vector in zip(candidates, vectors, strict=True):
                similarity, age = nearest(self.vectors[: len(self.said)], vector)
                # A repeat is farthest from any other band: there are already enough repeats.
                misses = 1.0 if similarity > SAME else band.distance(similarity)
                octaves = abs(float(np.log2(age / wanted))) if wanted else 0.0
                tried.append(_Tried(misses, octaves, candidate, vector, similarity))
            if any(one.misses == 0 and one.octaves <= OCTAVES for one in tried):
                break
        best = min(tried, key=lambda one: (one.misses, one.octaves))
        return best.utterance, best.vector, best.similarity

    def _candidates(self, band: Band) -> tuple[list[Utterance], int]:
        """Return candidates with their intended age; 0 if it does not matter."""
        if not band.edits:
            return [fresh(self.rng) for _ in range(CANDIDATES)], 0
        age = band.draw_age(self.rng, len(self.said))
        donor = self.said[-age]
        return [band.edits[index % len(band.edits)](donor, self.rng) for index in range(CANDIDATES)], age

    def _append(self, utterance: Utterance, vector: Vectors, similarity: float) -> None:
        row = len(self.said)
        if row == len(self.vectors):
            grown = np.zeros((max(64, 2 * row), len(vector)), np.float32)
            grown[:row] = self.vectors[:row] if row else 0.0
            self.vectors = grown
        self.vectors[row] = vector
        self.counts[next(index for index, band in enumerate(self.bands) if band.holds(max(similarity, -0.999)))] += 1
        self.said.append(utterance)
        self.texts.append(utterance.text)
        self.newest[utterance.text] = row


def nearest(previous: Vectors, vector: Vectors) -> tuple[float, int]:
    """Return cosine and age (1 for the one just before) of the nearest previous one, the newest among equals."""
    cosines = previous @ vector
    close = np.flatnonzero(cosines >= cosines.max() - 1e-6)
    return float(cosines[close[-1]]), len(previous) - int(close[-1])


def reuse(embeddings: Vectors) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return cosine and age of each prompt's nearest previous one, for all but the first."""
    found = [nearest(embeddings[:row], embeddings[row]) for row in range(1, len(embeddings))]
    return np.array([cosine for cosine, _ in found]), np.array([age for _, age in found], np.int64)


def scene_workload(log: SceneLog, rate: float, rng: np.random.Generator, encoder: str) -> Workload:
    """Return the whole log once, at Poisson times of `rate` requests per second."""
    drawn = poisson(rate, 1.2 * len(log.prompts) / rate + 60.0, rng, log.content()).first(len(log.prompts))
    made_by = {"builder": "scene_log", "composite": True, "rate": rate, "encoder": encoder, "sources": list(SOURCES)}
    return Workload("scene-log", drawn.arrivals, made_by, log.embeddings)


def clip_embedder(folder: Path) -> Embed:
    """Return the text tower of a CLIPModel directory (`zoo/weights/tiny-clip`). It caches embeddings: a text has the
    same vector, to the last bit, in any batch."""
    import torch
    from transformers import CLIPModel, CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(folder)
    clip = CLIPModel.from_pretrained(folder).eval()
    known: dict[str, Vectors] = {}

    @torch.no_grad()
    def embed(texts: Sequence[str]) -> Vectors:
        unknown = [text for text in dict.fromkeys(texts) if text not in known]
        if unknown:
            tokens = tokenizer(unknown, padding=True, truncation=True, return_tensors="pt")
            pooled = clip.text_model(**tokens).pooler_output
            features = torch.nn.functional.normalize(clip.text_projection(pooled), dim=-1)
            known.update(zip(unknown, features.numpy(), strict=True))
        return np.stack([known[text] for text in texts])

    return embed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.scene_log", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="workload file (.jsonl or .jsonl.gz)")
    parser.add_argument("--count", type=int, default=3500)
    parser.add_argument("--rate", type=float, default=1.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", type=Path, default=Path(__file__).parent / "weights" / "tiny-clip")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    log = write_scene_log(options.count, clip_embedder(options.encoder), rng)
    save_workload(scene_workload(log, options.rate, rng, options.encoder.name), options.out)


if __name__ == "__main__":
    run(main)

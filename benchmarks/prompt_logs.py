"""Read prompt logs as vectors: the files of a data directory, and their embeddings.

A log is in request order; a set is a collection of prompts without a meaningful order.
"""

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from pentimento.supervisor.models import find_encoder
from services.embedder.model import open_model

Vectors = npt.NDArray[np.float32]

ENCODER = "all-minilm-l6-v2"
_BATCH = 64


@dataclass(frozen=True)
class PromptFile:
    """Name a file below `prompts/`; `vectors` is the file of its embeddings, if it exists."""

    name: str
    file: str
    column: int | None
    in_order: bool
    vectors: str | None = None

    def prompts(self, data: Path) -> list[str]:
        """Return the prompts in the file's order."""
        text = gzip.decompress((data / "prompts" / self.file).read_bytes()).decode()
        if self.column is None:
            return text.splitlines()
        rows = list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
        return [row[self.column] for row in rows[1:]]


DIFFUSIONDB = PromptFile(
    "DiffusionDB", "diffusiondb_2m_first3500.txt.gz", None, True, "diffusiondb_2m_first3500.minilm.f16.npy"
)
DIVERSE = PromptFile("DiffusionDB, chosen for diversity", "imagereward_diffusiondb.tsv.gz", 2, False)
COMPOSED = PromptFile("T2I-CompBench", "t2i_compbench.tsv.gz", 2, False)


def read_vectors(file: PromptFile, data: Path, limit: int, kept: Path | None = None) -> Vectors:
    """Return unit vectors (prompts, size) of the first `limit` prompts; the directory `kept` caches computed
    embeddings."""
    if file.vectors is not None:
        return _unit(np.load(data / "prompts" / file.vectors)[:limit].astype(np.float32))
    cached = None if kept is None else kept / f"{file.file}.{limit}.{ENCODER}.npy"
    if cached is not None and cached.exists():
        return np.asarray(np.load(cached), np.float32)
    vectors = embed(file.prompts(data)[:limit])
    if cached is not None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        np.save(cached, vectors)
    return vectors


def embed(prompts: Sequence[str], progress: Callable[[int], None] = lambda done: None) -> Vectors:
    """Return unit vectors (prompts, 384) by the packaged sentence encoder (extra `sentences`)."""
    model = open_model(find_encoder(ENCODER).path)
    # sorted by length, so that a batch has little padding
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    rows: dict[int, bytes] = {}
    with torch.inference_mode():
        for first in range(0, len(order), _BATCH):
            chosen = order[first : first + _BATCH]
            rows |= dict(zip(chosen, model.embed_texts([prompts[index] for index in chosen]), strict=True))
            progress(len(rows))
    return np.stack([np.frombuffer(rows[index], np.float32) for index in range(len(prompts))])


def _unit(rows: Vectors) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)

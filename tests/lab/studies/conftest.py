"""Make small logs with repeats, near repeats and unrelated prompts."""

from collections.abc import Callable

import numpy as np
import pytest

Vectors = np.ndarray


def unit_vectors(count: int, seed: int, width: int = 4) -> Vectors:
    """Unit vectors (count, width): strangers, exact repeats and near repeats of earlier ones."""
    random = np.random.default_rng(seed)
    rows = [random.normal(size=width)]
    while len(rows) < count:
        kind, earlier = random.random(), rows[random.integers(len(rows))]
        rows.append(earlier if kind < 0.3 else earlier + (0.3 if kind < 0.7 else 9.0) * random.normal(size=width))
    found = np.asarray(rows[:count], np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture
def make_vectors() -> Callable[..., Vectors]:
    return unit_vectors


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few prompts go through many blocks."""
    monkeypatch.setattr("lab.studies.neighbours.BLOCK_ROWS", 5)
    monkeypatch.setattr("lab.studies.neighbours.CHUNK_COLUMNS", 7)

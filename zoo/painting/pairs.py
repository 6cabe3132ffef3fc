"""Generate images of the same prompts and seeds by both models of a pair, cached in a work folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor

from zoo.painting.pipeline import generate, load_pipeline
from zoo.painting.store import ImageStore, weights_digest


@dataclass(frozen=True)
class ImageSource:
    """Name a pipeline's directory and its settings."""

    folder: Path
    steps: int
    scale: float

    def generate(self, work: Path, prompts: Sequence[str], seeds: Sequence[int], batch: int = 16) -> Tensor:
        """Return images as uint8 (n, 3, height, width), generated or cached in the folder by an earlier run."""
        pipeline = cache(lambda: load_pipeline(self.folder))  # needed if something is not cached yet
        manner: dict[str, object] = {
            "model": weights_digest(self.folder),
            "steps": self.steps,
            "scale": self.scale,
        }

        def generated(rows: list[int]) -> Tensor:
            chosen = [prompts[row] for row in rows], [seeds[row] for row in rows]
            return generate(pipeline(), *chosen, self.steps, self.scale, batch)

        return ImageStore(work, manner).get(prompts, seeds, generated)

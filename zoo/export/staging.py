"""Replace old directories with complete new ones, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.files import FULL, cannot_write
from zoo.registry import MODELS


@contextmanager
def staged(weights: Path) -> Iterator[Path]:
    """Yield a folder next to the directories, removed after the block; repair a half-done earlier export."""
    for model in MODELS:
        if not (weights / model).exists() and old_of(weights / model).exists():
            old_of(weights / model).rename(weights / model)
        shutil.rmtree(old_of(weights / model), ignore_errors=True)
    stage = weights / ".exporting"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(parents=True)
        yield stage
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(Path(error.filename or weights), error) from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def swap(new: Path, place: Path) -> None:
    """Put a complete directory in the place of another."""
    if place.exists():
        place.rename(old_of(place))
    new.rename(place)
    shutil.rmtree(old_of(place), ignore_errors=True)


def old_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")

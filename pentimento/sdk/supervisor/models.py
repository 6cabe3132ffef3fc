"""Which model directories a name stands for: the registry of the tiny models, or a directory as it is."""

import json
from dataclasses import dataclass
from pathlib import Path

from pentimento.domain.errors import InvalidArgument, NotFound

WEIGHTS = Path(__file__).resolve().parents[3] / "zoo" / "weights"
DEFAULT_MODEL = "tiny-heavy"
DEFAULT_ENCODER = "tiny-clip"


@dataclass(frozen=True)
class ModelDirectory:
    name: str
    path: Path


def find_model(given: str, weights: Path = WEIGHTS) -> ModelDirectory:
    """A registry name, or a diffusers directory whose last part becomes the model's name.

    Names are looked up among the registry's, never joined to a path. NotFound lists those there are.
    """
    known = registry(weights)
    if given in known:
        return ModelDirectory(given, known[given])
    directory = Path(given).resolve()
    if not directory.is_dir():
        there = ", ".join(sorted(known)) or f"none in {weights}"
        raise NotFound("MODEL_NOT_FOUND", f"model {given!r} is neither a directory nor a known name ({there})")
    return ModelDirectory(directory.name, directory)


def find_models(given: tuple[str, ...], weights: Path = WEIGHTS) -> tuple[ModelDirectory, ...]:
    models = tuple(find_model(name, weights) for name in given or (DEFAULT_MODEL,))
    seen = [model.name for model in models]
    if len(set(seen)) != len(seen):
        raise InvalidArgument.of("model", f"must be given once each, got {', '.join(seen)}; --workers makes copies")
    return models


def registry(weights: Path) -> dict[str, Path]:
    """Directories by name; empty where there is no registry."""
    try:
        entries = json.loads((weights / "registry.json").read_text())["models"]
    except FileNotFoundError:
        return {}
    return {entry["name"]: weights / entry["path"] for entry in entries}

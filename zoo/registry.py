"""The registry of the zoo's exported models: what there is, where it lies and what it must hash to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
LICENCE = "Apache-2.0"
SIDE = 32
ENTRIES: tuple[dict[str, object], ...] = (
    {
        "name": "tiny-heavy",
        "kind": "pipeline",
        "family": "sd",
        "default_steps": 50,
        "default_guidance_scale": 2.5,
        "height": SIDE,
        "width": SIDE,
    },
    {
        "name": "tiny-light",
        "kind": "pipeline",
        "family": "sd",
        "default_steps": 12,
        "default_guidance_scale": 2.5,
        "height": SIDE,
        "width": SIDE,
    },
    {"name": "tiny-clip", "kind": "dual_encoder", "family": "clip", "height": SIDE, "width": SIDE},
)


def directory_digest(folder: Path) -> str:
    """sha256 over the lines `<relative path>\\0<sha256 of the file>\\n` of every file, sorted by path."""
    whole = hashlib.sha256()
    files = sorted((path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_file())
    for name, path in files:
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{whole.hexdigest()}"


def write_registry(weights: Path = WEIGHTS) -> dict[str, object]:
    """Write registry.json for the directories that are there; run last, since a model card is part of its digest."""
    models = []
    for entry in ENTRIES:
        folder = weights / str(entry["name"])
        if folder.is_dir():
            models.append({**entry, "path": entry["name"], "digest": directory_digest(folder), "licence": LICENCE})
    registry: dict[str, object] = {"models": models}
    (weights / "registry.json").write_text(json.dumps(registry, indent=2) + "\n", encoding="utf-8")
    return registry


def read_registry(weights: Path = WEIGHTS) -> dict[str, dict[str, object]]:
    """The registry's entries by name."""
    models = json.loads((weights / "registry.json").read_text(encoding="utf-8"))["models"]
    return {str(model["name"]): model for model in models}

"""Read the registry of the repository's tiny models."""

import json

from pentimento.supervisor.models import WEIGHTS


def size_px(model: str = "tiny-heavy") -> tuple[int, int]:
    """Return width and height of a pipeline's images."""
    entries = json.loads((WEIGHTS / "registry.json").read_text())["models"]
    return next((entry["width"], entry["height"]) for entry in entries if entry["name"] == model)

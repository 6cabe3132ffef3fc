"""What the registry says of the tiny models that come with the repository."""

import json

from pentimento.supervisor.models import WEIGHTS


def size_px(model: str = "tiny-heavy") -> tuple[int, int]:
    """Width and height of a pipeline's pictures."""
    entries = json.loads((WEIGHTS / "registry.json").read_text())["models"]
    return next((entry["width"], entry["height"]) for entry in entries if entry["name"] == model)

"""Check models against the digests in the registry.json of their directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.domain.errors import FailedPrecondition


def registry_entry(model: Path) -> Mapping[str, Any]:
    """Return the model's entry in the registry.json of its parent directory; empty if there is none. Raises
    BadCheckpoint for a registry that cannot be read."""
    path = model.resolve().parent / "registry.json"
    if not path.is_file():
        return {}
    models = read_json_object(path).get("models")
    if not isinstance(models, list) or not all(isinstance(entry, dict) for entry in models):
        raise BadCheckpoint(f"{path}: models must be a list of objects")
    return next((entry for entry in models if entry.get("path") == model.resolve().name), {})


def check_digest(model: Path, digest: str, expected: str) -> None:
    """Raise FailedPrecondition unless the model has the `expected` digest, or if that is empty, its registry's; without
    either any model passes."""
    expected = expected or str(registry_entry(model).get("digest", ""))
    if expected not in ("", digest):
        message = f"{model}: its digest is {digest}, expected {expected[:80]}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", f"{message} (--accept-other-digest serves it all the same)")

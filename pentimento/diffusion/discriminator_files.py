"""What a discriminator's directory holds, judged without torch: the services say what is wrong before they load it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import (
    BadCheckpoint,
    check_inside,
    digest_files,
    read_json_object,
    weight_files,
)
from pentimento.diffusion.model_registry import check_digest

HEAD_FILE, HEAD_WEIGHTS = "prompt_head.json", "prompt_head.safetensors"


@dataclass(frozen=True)
class DiscriminatorFiles:
    """`document` is config.json's; `weights` are the network's alone."""

    config: Path
    document: Mapping[str, Any]
    preprocessing: Path
    weights: tuple[Path, ...]
    has_head: bool
    digest: str


def discriminator_files(directory: Path, *, accept_other_digest: bool = False) -> DiscriminatorFiles:
    """Return the files of a discriminator's directory; reads all of them, for their digest.

    Raises BadCheckpoint with the file for what is no such directory, and FailedPrecondition MODEL_DIGEST_MISMATCH for
    one that is not what the registry.json beside it says, unless `accept_other_digest`.
    """
    config, preprocessing = directory / "config.json", directory / "preprocessor_config.json"
    document = read_json_object(config)
    head = head_files(directory)
    weights = tuple(file for file in weight_files(directory) if file.name != HEAD_WEIGHTS)
    if not weights:
        raise BadCheckpoint(f"{directory}: holds no safetensors file")
    files = [config, preprocessing, *weights, *head]
    check_inside(directory, files)
    digest = digest_files(directory, files)
    if not accept_other_digest:
        check_digest(directory, digest, "")
    return DiscriminatorFiles(config, document, preprocessing, weights, bool(head), digest)


def head_files(directory: Path) -> tuple[Path, ...]:
    """Return the files of a directory's head; none where it has none. Raises BadCheckpoint for half of one."""
    files = directory / HEAD_FILE, directory / HEAD_WEIGHTS
    there = [file.is_file() for file in files]
    if any(there) and not all(there):
        raise BadCheckpoint(f"{directory}: must have both {HEAD_FILE} and {HEAD_WEIGHTS}, or neither")
    return files if all(there) else ()

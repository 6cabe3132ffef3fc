"""Validate a discriminator's directory without torch: services report faults before they load it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_files, read_json_object, weight_files
from pentimento.diffusion.model_registry import check_digest

HEAD_FILE, HEAD_WEIGHTS = "prompt_head.json", "prompt_head.safetensors"


@dataclass(frozen=True)
class DiscriminatorFiles:
    """Hold the files of a discriminator: `document` is config.json's content; `weights` are only the network's."""

    config: Path
    document: Mapping[str, Any]
    preprocessing: Path
    weights: tuple[Path, ...]
    has_head: bool
    digest: str


def discriminator_files(directory: Path, *, accept_other_digest: bool = False) -> DiscriminatorFiles:
    """Return the files of a discriminator's directory; reads every file, for the digest.

    Raises BadCheckpoint naming the file for an invalid directory, and FailedPrecondition MODEL_DIGEST_MISMATCH for a
    digest other than in its parent's registry.json, unless `accept_other_digest`.
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
    """Return the files of a directory's head; empty if it has none. Raises BadCheckpoint if one of the two is
    missing."""
    files = directory / HEAD_FILE, directory / HEAD_WEIGHTS
    there = [file.is_file() for file in files]
    if any(there) and not all(there):
        raise BadCheckpoint(f"{directory}: must have both {HEAD_FILE} and {HEAD_WEIGHTS}, or neither")
    return files if all(there) else ()

"""Tensors on disk: written whole or not at all, and read only when they are what was expected.

What is wrong with a file is one of the errors of `pentimento.domain.errors`, in one line that begins with its path.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pentimento.domain.errors import FailedPrecondition, NotFound, PentimentoError, ResourceExhausted
from pentimento.files.safetensors_header import check_safetensors

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Take the place of `path` once every byte is on the disk; on any failure what was there before stays."""
    contents = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with replacing(path) as partial:
        save_file(contents, partial, metadata=metadata)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file or folder beside `path` to write, which takes its place at the end of the block, or goes if that fails.

    ResourceExhausted where there is no room, FailedPrecondition for whatever else keeps the file from being written.
    """
    sweep(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        flush_tree(partial)
        partial.replace(path)
        _flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            _remove(partial)


def sweep(path: Path) -> None:
    """Remove what a writer of `path` left that was killed."""
    for partial in path.parent.glob(f"{path.name}.*.partial"):
        owner = partial.name.removeprefix(f"{path.name}.").removesuffix(".partial")
        if not (owner.isdigit() and int(owner) != os.getpid() and Path(f"/proc/{owner}").exists()):
            _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Wait until a file, or every file under a folder, is on the disk."""
    for path in (folder, *folder.rglob("*")):
        _flush(path)


def cannot_write(path: Path, error: OSError | SafetensorError) -> PentimentoError:
    if isinstance(error, OSError):
        full, reason = error.errno in FULL, error.strerror or str(error)
    else:  # its number is known by its text alone
        full = any(f"os error {number}" in str(error) for number in FULL)
        reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
    if full:
        return ResourceExhausted("DISK_FULL", f"{path}: cannot be written: {reason}")
    return FailedPrecondition("NOT_WRITABLE", f"{path}: cannot be written: {reason}")


def read_tensors(path: Path, what: str, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Every tensor of a file of `what`, which has to hold those `names` and no other.

    NotFound, or FailedPrecondition where it is cut short, no safetensors file at all, or one of something else.
    """
    with opened(path, what) as file:
        found = list(file.keys())
        if names is not None:
            check_names(path, what, found, names)
        return {name: file.get_tensor(name) for name in found}


def read_metadata(path: Path, what: str, key: str) -> dict[str, object]:
    """The JSON object that a file of `what` holds under `key` of its metadata; the tensors are not read."""
    with opened(path, what) as file:
        text = (file.metadata() or {}).get(key)
    try:
        document = json.loads(text or "")
    except ValueError:
        raise bad_file(path, what, f"its header tells no {key}") from None
    if not isinstance(document, dict):
        raise bad_file(path, what, f"its header's {key} is no JSON object")
    return document


@contextmanager
def opened(path: Path, what: str) -> Iterator[safe_open]:
    """A safetensors file whose length and header have been checked before a library maps it."""
    if not path.is_file():
        raise NotFound("FILE_MISSING", f"{path}: not there; expected {what}")
    try:
        check_safetensors(path)
        file = safe_open(path, "pt")
    except (ValueError, OSError, SafetensorError) as error:
        raise bad_file(path, what, f"it is no whole safetensors file: {error}") from None
    with file:
        yield file


def check_names(path: Path, what: str, found: Iterable[str], wanted: Iterable[str]) -> None:
    there, asked = set(found), set(wanted)
    missing, foreign = sorted(asked - there), sorted(there - asked)
    if missing or foreign:
        lacks = f"lacks {_some(missing)}" if missing else ""
        holds = f"holds {_some(foreign)}" if foreign else ""
        raise bad_file(path, what, " and ".join(filter(None, (lacks, holds))))


def bad_file(path: Path, what: str, reason: str) -> FailedPrecondition:
    return FailedPrecondition("BAD_FILE", f"{path}: expected {what}, but {reason}")


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name[:80]) for name in names[:shown]) + more


def cached_tensors(
    path: Path, what: str, names: Iterable[str], make: Callable[[], Mapping[str, Tensor]], made_of: str = ""
) -> dict[str, Tensor]:
    """What `make` makes, kept in `path`, and made again where that is of something else than `made_of`.

    Also what was just made is read back: a first run then computes on the very layouts in memory of later ones.
    """
    if not path.exists() or (made_of and _made_of(path, what) != made_of):
        write_tensors(path, make(), {"made_of": made_of})
    return read_tensors(path, what, names)


def _made_of(path: Path, what: str) -> str:
    with opened(path, what) as file:
        return str((file.metadata() or {}).get("made_of", ""))


def file_digest(path: Path) -> str:
    """The sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Write tensors atomically, and read them only if they have the expected content.

A file's defect raises one of `pentimento.domain.errors`, in one line that begins with its path.
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
from pentimento.files.private_files import flush
from pentimento.files.safetensors_header import check_safetensors

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Replace `path` once every byte is on the disk; on any failure the old file stays."""
    contents = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with replacing(path) as partial:
        save_file(contents, partial, metadata=metadata)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path next to `path` to write, which replaces it at the end of the block, or is removed on failure.

    Raises ResourceExhausted without room, FailedPrecondition for any other error of writing.
    """
    sweep(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        flush_tree(partial)
        partial.replace(path)
        flush(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            _remove(partial)


def sweep(path: Path) -> None:
    """Remove the remains of a killed writer of `path`."""
    for partial in path.parent.glob(f"{path.name}.*.partial"):
        owner = partial.name.removeprefix(f"{path.name}.").removesuffix(".partial")
        if not (owner.isdigit() and int(owner) != os.getpid() and Path(f"/proc/{owner}").exists()):
            _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush_tree(folder: Path) -> None:
    """Wait until a file, or every file under a folder, is on the disk."""
    for path in (folder, *folder.rglob("*")):
        flush(path)


def cannot_write(path: Path, error: OSError | SafetensorError) -> PentimentoError:
    if isinstance(error, OSError):
        full, reason = error.errno in FULL, error.strerror or str(error)
    else:  # this errno is only known by its text
        full = any(f"os error {number}" in str(error) for number in FULL)
        reason = str(error).rpartition("I/O error: ")[2].partition(" (os error")[0]
    if full:
        return ResourceExhausted("DISK_FULL", f"{path}: cannot be written: {reason}")
    return FailedPrecondition("NOT_WRITABLE", f"{path}: cannot be written: {reason}")


def read_tensors(path: Path, what: str, names: Iterable[str] | None = None) -> dict[str, Tensor]:
    """Return every tensor of a file of `what`, which must hold those `names` and no other.

    Raises NotFound, or FailedPrecondition if it is cut short, no safetensors file, or of something else.
    """
    with opened(path, what) as file:
        found = list(file.keys())
        if names is not None:
            check_names(path, what, found, names)
        return {name: file.get_tensor(name) for name in found}


def read_metadata(path: Path, what: str, key: str) -> dict[str, object]:
    """Return the JSON object under `key` of a file's metadata, without its tensors; `what` names the content."""
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
    """Open a safetensors file after checking its length and header, before a library maps it."""
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
    """Return `make`'s result, cached in `path`, and made again if the file is of something else than `made_of`.

    A fresh result is read back too: a first run then computes on the same memory layouts as later ones.
    """
    if not path.exists() or (made_of and _made_of(path, what) != made_of):
        write_tensors(path, make(), {"made_of": made_of})
    return read_tensors(path, what, names)


def _made_of(path: Path, what: str) -> str:
    with opened(path, what) as file:
        return str((file.metadata() or {}).get("made_of", ""))


def file_digest(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

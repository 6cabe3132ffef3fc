"""Keep the directories of the embedded index: the serving one, and the remains of crashes.

    <directory>/v2-d512             the first one; v2-d384-i512 where texts and images have other dimensions
    <directory>/v2-d512.g000002     one that was built later
    <directory>/v2-d512.current     the serving one, and its number of points: JSON, replaced in one rename
    <directory>/v2-d512.lock        held by the process that the index belongs to

A directory that `current` does not name is a leftover.
Directories of other dimensions are of the index before: it serves until the new one is complete.
"""

import fcntl
import json
import logging
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pentimento.files.private_files import make_private_directory, replace_file
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.vectors.index import Dimensions

logger = logging.getLogger(__name__)

_STORE = "vector index"
_FORMAT = "v2"
_LOCK_POLL_S = 0.05
# The suffix of the file that a directory's shard process locks.
LOCK_SUFFIX = ".shard-lock"


@dataclass(frozen=True)
class Generation:
    """Name a directory of the index, and its number of points when its graph was built (0: never)."""

    path: Path
    built_count: int = 0


class Generations:
    """Manage the directories of an index; `text` and `image` count the dimensions of each space, None: the same. One
    process at a time holds them."""

    def __init__(self, directory: Path, text: int, image: int | None = None) -> None:
        self._directory = directory
        self._name = f"{_FORMAT}-{Dimensions.given(text, image).name}"
        self._lock: IO[str] | None = None

    def hold(self, timeout_s: float) -> None:
        """Wait until no other process holds them: one that is dying may still. Raises StoreUnavailable."""
        make_private_directory(self._directory)
        lock = (self._directory / f"{self._name}.lock").open("w")
        until = time.monotonic() + timeout_s
        while not _locked(lock):
            if time.monotonic() > until:
                lock.close()
                raise StoreUnavailable(_STORE, "another process has it open")
            time.sleep(_LOCK_POLL_S)
        self._lock = lock

    def release(self) -> None:
        """Let others hold them."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def current(self) -> Generation:
        """Return the generation that serves; the first one without a pointer."""
        try:
            found = json.loads(self._pointer.read_text())
            name, built_count = str(found["directory"]), int(found["built_count"])
        except FileNotFoundError:
            return Generation(self._directory / self._name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.error("the index in use cannot be read (%s); it is filled again", error)
            return Generation(self._directory / self._name)
        if not re.fullmatch(rf"{re.escape(self._name)}(\.g\d+)?", name):
            logger.error("the index has no name of ours; it is filled again")
            return Generation(self._directory / self._name)
        return Generation(self._directory / name, built_count)

    def following(self) -> Path:
        """Return the unused path of the next one."""
        built = [path for path in self._directory.glob(f"{self._name}.g*") if path.is_dir()]
        numbers = [int(path.name.split(".")[1].removeprefix("g")) for path in built]
        return self._directory / f"{self._name}.g{max(numbers, default=1) + 1:06d}"

    def publish(self, generation: Generation) -> None:
        """Make a generation serve, durably, in one rename. Raises OSError: nothing has changed then."""
        words = json.dumps({"directory": generation.path.name, "built_count": generation.built_count})
        replace_file(self._pointer, words, durable=True)

    def discard(self, path: Path) -> None:
        """Delete a directory that does not serve; files that cannot be deleted are left to the next start."""
        shutil.rmtree(path, ignore_errors=True)
        for unfinished in self._directory.glob(f"{path.name}.unfinished-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):
            path.with_name(f"{path.name}{LOCK_SUFFIX}").unlink()

    def clean(self) -> list[str]:
        """Delete the remains of builds and crashes; return the names. Only for the process that holds the
        directories."""
        kept = self.current().path.name
        leftovers = [path for path in self._directory.glob(f"{self._name}*") if self._is_leftover(path, kept)]
        for path in leftovers:
            self.discard(path)
        return sorted(path.name for path in leftovers)

    def delete(self) -> None:
        """Delete the index. Only for the process that holds the directories."""
        for path in (self._directory / self._name, *self._directory.glob(f"{self._name}.*")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()

    @property
    def _pointer(self) -> Path:
        return self._directory / f"{self._name}.current"

    def _is_leftover(self, path: Path, kept: str) -> bool:
        ours = path.name == self._name or path.name.startswith(f"{self._name}.")
        return ours and path.is_dir() and path.name != kept


def dimensions_in(directory: Path) -> list[Dimensions]:
    """Return the dimensions of all indexes in the directory."""
    names = {path.name.partition(".")[0] for path in directory.glob(f"{_FORMAT}-d*") if path.is_dir()}
    found = (Dimensions.named(name.removeprefix(f"{_FORMAT}-")) for name in sorted(names))
    return [dimensions for dimensions in found if dimensions is not None]


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

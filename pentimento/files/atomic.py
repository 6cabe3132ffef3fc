"""Replace files whole or not at all: the bytes go to another file first, which then takes the name."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes | str, *, mode: int = 0o666, durable: bool = False) -> None:
    """Write a file, in place of any other. Readers, and a crash of the process, find the old file or the new one; with
    `durable` a power cut too. `mode`: its rights, less the umask. Raises OSError: the old file is unchanged then."""
    fresh = path.with_name(f"{path.name}.new")
    content = data.encode() if isinstance(data, str) else data
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(descriptor)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    if durable:
        # The file is replaced already: a failure here must not look as if it were not.
        with suppress(OSError):
            flush(path.parent)


def flush(path: str | Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

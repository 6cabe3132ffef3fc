"""Which files of a directory this process has open."""

from contextlib import suppress
from pathlib import Path


def files_open_under(directory: Path) -> list[str]:
    """Return the names of the directory's files that are open, once per descriptor, also of deleted files.

    Descriptors of other files are not counted: the garbage collector closes files of earlier tests at any time.
    """
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # Closed since it was listed.
            names.append(str(descriptor.readlink()))
    return [name for name in names if name.startswith(f"{directory}/")]

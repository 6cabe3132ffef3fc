"""Keep files private to this user: they hold prompts and images, and the machine may have other users. Replace files
whole or not at all: the bytes go to another file first, which then takes the name."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pentimento.domain.errors import InvalidArgument


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


OWNER_ONLY_UMASK = 0o077
_OTHERS = 0o077


def keep_files_private() -> None:
    """Make all files that this process and its children create from here on readable only by their user; changes
    state."""
    os.umask(OWNER_ONLY_UMASK)


def make_private_directory(directory: Path) -> None:
    """Create the directory and its parents private to this user; close an existing one to others."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    close_to_others(directory)


def close_to_others(path: Path) -> None:
    """Remove the rights of group and others from a file or directory of this user. Another user's file, a link, or a
    shared directory such as /tmp stays unchanged."""
    found = path.lstat()
    is_shared_place = path.is_dir() and found.st_mode & 0o1000
    if found.st_uid == os.getuid() and found.st_mode & _OTHERS and not path.is_symlink() and not is_shared_place:
        path.chmod(found.st_mode & 0o7777 & ~_OTHERS)


def close_tree_to_others(root: Path) -> None:
    """Close a directory, created if missing, to others, and everything below it if it was open: the content of a
    private directory was created private."""
    was_open = root.is_dir() and root.stat().st_mode & _OTHERS
    make_private_directory(root)
    if was_open:
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                close_to_others(Path(folder) / name)


def keep_private_file(path: Path, new_text: Callable[[], str]) -> None:
    """Create a file with `new_text`, closed to others, if it is missing. Two concurrent callers find the same text.
    Raises InvalidArgument that names the file."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            draft.touch(mode=0o600, exist_ok=False)
            draft.write_text(new_text())
            with suppress(FileExistsError):
                path.hardlink_to(draft)
        finally:
            # A failed start leaves no file: restarts on a full disk would leave one each time.
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidArgument.of(str(path), f"cannot be made: {type(error).__name__}") from None

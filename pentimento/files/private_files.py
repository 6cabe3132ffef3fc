"""Keep files private to this user: they hold prompts and images, and the machine may have other users."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pentimento.domain.errors import InvalidArgument

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

"""Files for this user alone: what is kept holds prompts and pictures, and others of the machine may look around."""

import os
from pathlib import Path

OWNER_ONLY_UMASK = 0o077
_OTHERS = 0o077


def keep_files_private() -> None:
    """Changes state: what this process and its children make from here on, only their user may read."""
    os.umask(OWNER_ONLY_UMASK)


def make_private_directory(directory: Path) -> None:
    """Makes the directory, and those above it, for this user alone; one that is there is closed to others."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    close_to_others(directory)


def close_to_others(path: Path) -> None:
    """Takes the rights of group and others from a file or directory of this user. What is another user's, a link, or a
    place for everybody such as /tmp stays as it is."""
    found = path.lstat()
    is_shared_place = path.is_dir() and found.st_mode & 0o1000
    if found.st_uid == os.getuid() and found.st_mode & _OTHERS and not path.is_symlink() and not is_shared_place:
        path.chmod(found.st_mode & 0o7777 & ~_OTHERS)


def close_tree_to_others(root: Path) -> None:
    """The same for a directory, which is made if it is missing, and for all that is below it, where it was open: what
    lies in a private one was made private."""
    was_open = root.is_dir() and root.stat().st_mode & _OTHERS
    make_private_directory(root)
    if was_open:
        for folder, folders, files in os.walk(root):
            for name in (*folders, *files):
                close_to_others(Path(folder) / name)

"""Directories for what several tests build once."""

import atexit
import shutil
import tempfile
from pathlib import Path


def directory_for_the_run(prefix: str) -> Path:
    """Make a directory that is deleted, with all in it, when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

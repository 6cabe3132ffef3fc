"""Share a suite among the tests of a folder."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest


class FolderSuite(ExitStack):
    """Hold the processes of a folder until its last test in this process ends. A session fixture would keep them
    running while other tests need the cores."""

    def __init__(self, folder: Path, apart: Sequence[str] = ()) -> None:
        """`apart` names subfolders with a separate suite."""
        super().__init__()
        self._folder = folder
        self._apart = [folder / name for name in apart]

    def end_before(self, following: pytest.Item | None) -> None:
        """Stop the processes unless the following test belongs to the folder."""
        if following is None or not self._is_of(following.path):
            self.close()

    def _is_of(self, path: Path) -> bool:
        return self._folder in path.parents and not any(other in path.parents for other in self._apart)

"""A suite that all tests of a folder share."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest


class FolderSuite(ExitStack):
    """Holds what was started for a folder, until the last of its tests that this process runs is over: a fixture of
    the session would leave it running, beside tests that want the cores."""

    def __init__(self, folder: Path, apart: Sequence[str] = ()) -> None:
        """`apart` are folders inside it that have a suite of their own."""
        super().__init__()
        self._folder = folder
        self._apart = [folder / name for name in apart]

    def end_before(self, following: pytest.Item | None) -> None:
        """Stop what was started unless the test that follows is one of the folder."""
        if following is None or not self._is_of(following.path):
            self.close()

    def _is_of(self, path: Path) -> bool:
        return self._folder in path.parents and not any(other in path.parents for other in self._apart)

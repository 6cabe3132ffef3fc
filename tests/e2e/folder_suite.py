"""A suite that all tests of a folder share."""

from contextlib import ExitStack
from pathlib import Path

import pytest


class FolderSuite(ExitStack):
    """Holds what was started for a folder, until the last of its tests that this process runs is over: a fixture of
    the session would leave it running, beside tests that want the cores."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def end_before(self, following: pytest.Item | None) -> None:
        """Stop what was started unless the test that follows is one of the folder."""
        if following is None or self._folder not in following.path.parents:
            self.close()

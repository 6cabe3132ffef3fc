"""Keys for the tests of signatures."""

from pathlib import Path

import pytest

from tests.unit.files.signing import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)

"""Directories whose sockets have short enough names."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as name:
        yield Path(name)

"""Provide directories with names short enough for sockets."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patient_connections import be_patient


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gw-", dir="/tmp") as name:
        yield Path(name)

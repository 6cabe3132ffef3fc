"""Connections of tests that are client and server at once survive a stall of the machine."""

import pytest

from tests.support.patient_connections import be_patient


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)

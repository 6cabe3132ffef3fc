"""Keep connections open over a stall of the machine: these tests are client and server in one process."""

import pytest

from tests.support.patient_connections import be_patient


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)

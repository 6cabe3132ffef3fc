"""Reasons travel by their names, and say what they mean."""

import sqlite3

import pytest

from pentimento.domain.reasons import Reason


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_its_name_wherever_it_goes(reason: Reason) -> None:
    (stored,) = sqlite3.connect(":memory:").execute("SELECT ?", (reason,)).fetchone()

    assert (reason.value, str(reason), stored) == (reason.name,) * 3


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_has_a_meaning_and_an_advice(reason: Reason) -> None:
    assert reason.meaning and reason.advice

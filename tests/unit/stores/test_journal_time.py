"""Compute the time that no process counted in the journal."""

import pytest

from pentimento.stores.ledger.journal.time import CountedTime, uncounted_s

LAST = CountedTime(50.0, 10_000.0, 400.0, "boot-1")
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("wall_s", "boot_s", "boot_id", "watched_s", "expected_s"),
    [
        pytest.param(10_020.0, 420.0, "boot-1", None, 20.0, id="same boot"),
        pytest.param(10_020.0 + HOUR_S, 420.0, "boot-1", None, 20.0, id="same boot, clock ahead"),
        pytest.param(10_020.0 - HOUR_S, 420.0, "boot-1", None, 20.0, id="same boot, clock behind"),
        pytest.param(10_000.0 + HOUR_S, 400.0 + HOUR_S, "boot-1", None, HOUR_S, id="same boot, away for an hour"),
        pytest.param(10_000.0 + HOUR_S, 420.0, "boot-1", 2.0, 20.0, id="same boot, watched"),
        pytest.param(10_020.0, 3.0, "boot-2", None, 20.0, id="another boot"),
        pytest.param(10_020.0 + HOUR_S, 3.0, "boot-2", None, 300.0, id="another boot, clock ahead"),
        pytest.param(10_020.0 - HOUR_S, 3.0, "boot-2", None, 0.0, id="another boot, clock behind"),
        pytest.param(10_000.0 + HOUR_S, 3.0, "boot-2", 2.0, 2.0, id="standby elsewhere, clock ahead"),
        pytest.param(10_000.0 - HOUR_S, 3.0, "boot-2", 2.0, 2.0, id="standby elsewhere, clock behind"),
        pytest.param(10_020.0, 420.0, "", None, 20.0, id="no name of the boot"),
    ],
)
def test_uncounted_time_follows_the_surest_clock(
    wall_s: float, boot_s: float, boot_id: str, watched_s: float | None, expected_s: float
) -> None:
    assert uncounted_s(LAST, CountedTime(0.0, wall_s, boot_s, boot_id), watched_s) == expected_s


def test_nothing_is_uncounted_before_first_beat() -> None:
    assert uncounted_s(CountedTime(0.0, 0.0, 0.0, ""), LAST, None) == 0.0

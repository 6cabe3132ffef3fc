"""Test the host's share of a machine's time from the kernel's counts."""

import time
from random import Random

import psutil
import pytest

from benchmarks.stolen_time import STAT, StolenTime, WhatIsLeft, busy_and_stolen


def test_busy_and_stolen_equal_psutil_counts() -> None:
    before = psutil.cpu_times()
    busy, stolen = busy_and_stolen(STAT.read_text())
    after = psutil.cpu_times()

    assert before.steal <= stolen / 100 <= after.steal
    assert before.user + before.system <= busy / 100 <= sum(after) - after.idle - after.iowait


def test_left_share_is_by_period(monkeypatch: pytest.MonkeyPatch) -> None:
    stolen = StolenTime()
    monkeypatch.setattr(stolen, "_samples", [(0.0, 100.0, 10.0), (1.0, 150.0, 10.0), (2.0, 180.0, 30.0)])

    assert stolen.left(0.0, 2.0, period_s=1.0).shares == pytest.approx((1.0, 0.6))
    assert stolen.share() == pytest.approx(0.2)


def test_stolen_time_samples_until_exit() -> None:
    began_s = time.monotonic()
    with StolenTime() as stolen:
        time.sleep(0.6)

    left = stolen.left(began_s, time.monotonic(), period_s=0.2)

    assert len(left.shares) >= 3
    assert all(0.0 < share <= 1.0 for share in left.shares)


def test_speed_course_keeps_last_share() -> None:
    course = WhatIsLeft((0.5, 0.9), 2.0).speeds(Random(1))

    assert list(course) == [(0.5, 2.0), (0.9, float("inf"))]

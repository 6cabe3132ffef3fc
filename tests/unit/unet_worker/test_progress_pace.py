"""Which progress messages an attempt sends, by when its steps end."""

from dataclasses import replace

import pytest

from services.unet_worker.attempts.order import SELDOM_S, ProgressPace
from tests.unit.unet_worker.orders import ORDER

STEP_S = 0.0625


@pytest.mark.parametrize(
    ("omit_progress", "previewed", "sent_steps"),
    [
        (False, (), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]),
        # A preview is a message, too.
        (False, (2, 10), [1, 4, 6, 8, 12, 14, 16, 18, 20]),
        (False, (20,), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
        (True, (), [1, 17]),
    ],
)
def test_pace_sends_ten_a_second_and_the_last_where_somebody_waits(
    omit_progress: bool, previewed: tuple[int, ...], sent_steps: list[int]
) -> None:
    """Twenty steps of 0.0625 s: two of them take more than a tenth of a second."""
    pace = replace(ORDER, omit_progress=omit_progress).progress_pace(0.1)

    sent = [step for step in range(1, 21) if pace.sends(step, 20, step * STEP_S, previewed=step in previewed)]

    assert sent == sent_steps


def test_pace_where_nobody_waits_is_seldom_whatever_the_setting() -> None:
    seldom, told = (replace(ORDER, omit_progress=omits).progress_pace(5.0) for omits in (True, False))

    assert SELDOM_S == 1.0
    assert [pace.sends(1, 20, 0.0) for pace in (seldom, told)] == [True, True]
    assert [pace.sends(2, 20, 4.9) for pace in (seldom, told)] == [False, False]


def test_pace_is_the_slower_of_the_worker_s_and_the_order_s() -> None:
    """The second of two steps at most: 0.4 s of the order, 0.5 s of the worker."""
    order = replace(ORDER, progress_interval_ms=400)

    found = {
        least_s: [at_s for at_s in (0.0, 0.3, 0.45, 0.55) if pace.sends(1, 20, at_s)]
        for least_s, pace in ((0.1, order.progress_pace(0.1)), (0.5, order.progress_pace(0.5)))
    }

    assert found == {0.1: [0.0, 0.45], 0.5: [0.0, 0.55]}


def test_pace_without_an_interval_sends_every_step() -> None:
    pace = ProgressPace(0.0)

    assert [step for step in range(1, 4) if pace.sends(step, 3, 0.0)] == [1, 2, 3]

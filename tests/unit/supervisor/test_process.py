"""When the supervisor starts a process again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.backoff import Backoff
from pentimento.supervisor.process import Ending, GiveUp, Restart, RestartPolicy, decide

POLICY = RestartPolicy(delays=Backoff(0.1, 5.0), stable_s=30.0, give_up_after=6)


def test_refused_first_start_is_not_tried_again() -> None:
    decision = decide(POLICY, 0, Ending(exit_code=2, served_s=0.0, ever_served=False))

    assert decision == GiveUp("refused to start (exit code 2)")


def test_killed_before_it_served_is_started_again() -> None:
    decision = decide(POLICY, 0, Ending(exit_code=-9, served_s=0.0, ever_served=False))

    assert decision == Restart(0.1, 1)


@pytest.mark.parametrize("served_s", [30.0, 31.0])
def test_long_service_wipes_the_slate_clean(served_s: float) -> None:
    decision = decide(POLICY, 5, Ending(exit_code=1, served_s=served_s, ever_served=True))

    assert decision == Restart(0.1, 1)


def test_a_first_start_that_is_always_killed_is_given_up() -> None:
    decision = decide(POLICY, 5, Ending(exit_code=-9, served_s=0.0, ever_served=False))

    assert decision == GiveUp("ended 6 times in a row, last with signal 9")


@pytest.mark.parametrize("code", [-9, 1])
@pytest.mark.parametrize("failures", [5, 1_000, 10_000])
def test_what_has_served_once_is_started_again_for_ever(code: int, failures: int) -> None:
    decision = decide(POLICY, failures, Ending(exit_code=code, served_s=1.0, ever_served=True))

    assert decision == Restart(5.0 if failures > 5 else 3.2, failures + 1)


@given(failures=st.integers(0, 4), served_s=st.floats(0, 29))
def test_pauses_grow_up_to_the_limit(failures: int, served_s: float) -> None:
    decision = decide(POLICY, failures, Ending(exit_code=-11, served_s=served_s, ever_served=True))

    assert isinstance(decision, Restart)
    assert decision.failures == failures + 1
    assert decision.delay_s == min(0.1 * 2**failures, 5.0)

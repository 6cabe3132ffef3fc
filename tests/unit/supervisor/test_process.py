"""Test when the supervisor restarts a process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.clock import Backoff
from pentimento.supervisor.process import Ending, GiveUp, Restart, RestartPolicy, decide

POLICY = RestartPolicy(delays=Backoff(0.1, 5.0), stable_s=30.0, give_up_after=6)


@pytest.mark.parametrize(
    ("failures", "ending", "decision"),
    [
        pytest.param(0, Ending(2, 0.0, False), GiveUp("refused to start (exit code 2)"), id="refused"),
        pytest.param(0, Ending(-9, 0.0, False), Restart(0.1, 1), id="killed-before-it-served"),
        pytest.param(5, Ending(-9, 0.0, False), GiveUp("ended 6 times in a row, last with signal 9"), id="six-times"),
        pytest.param(5, Ending(1, 30.0, True), Restart(0.1, 1), id="served-just-long-enough"),
        pytest.param(5, Ending(1, 31.0, True), Restart(0.1, 1), id="served-longer"),
    ],
)
def test_decide_by_failures_and_ending(failures: int, ending: Ending, decision: Restart | GiveUp) -> None:
    assert decide(POLICY, failures, ending) == decision


@pytest.mark.parametrize("code", [-9, 1])
@pytest.mark.parametrize("failures", [5, 1_000, 10_000])
def test_process_that_served_is_always_restarted(code: int, failures: int) -> None:
    decision = decide(POLICY, failures, Ending(exit_code=code, served_s=1.0, ever_served=True))

    assert decision == Restart(5.0 if failures > 5 else 3.2, failures + 1)


@given(failures=st.integers(0, 4), served_s=st.floats(0, 29))
def test_pauses_grow_up_to_the_limit(failures: int, served_s: float) -> None:
    decision = decide(POLICY, failures, Ending(exit_code=-11, served_s=served_s, ever_served=True))

    assert isinstance(decision, Restart)
    assert decision.failures == failures + 1
    assert decision.delay_s == min(0.1 * 2**failures, 5.0)

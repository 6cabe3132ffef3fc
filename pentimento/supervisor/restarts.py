"""Decide when to restart a process that ended: after growing pauses, and without limit once it has served."""

from dataclasses import dataclass

from pentimento.domain.backoff import Backoff


@dataclass(frozen=True)
class RestartPolicy:
    """Set the limits of restarts, in seconds. Serving for `stable_s` resets the count of failures. A process that never
    served fails permanently after it has ended `give_up_after` times."""

    delays: Backoff = Backoff(first_s=0.1, max_s=5.0)
    stable_s: float = 5.0
    give_up_after: int = 8


@dataclass(frozen=True)
class Ending:
    """Describe the end of a process: its exit code (negative: the signal), and the seconds that it served (0: none)."""

    exit_code: int
    served_s: float
    ever_served: bool


@dataclass(frozen=True)
class Restart:
    """Restart after `delay_s`; `failures` is the count to pass to the next decision."""

    delay_s: float
    failures: int


@dataclass(frozen=True)
class GiveUp:
    reason: str


def decide(policy: RestartPolicy, failures: int, ending: Ending) -> Restart | GiveUp:
    """Decide between a restart and giving up. A service that fails its first start (bad settings, a corrupt model)
    would fail the next one too. A service that has served always restarts, since accepted requests wait for it."""
    if not ending.ever_served and ending.exit_code > 0:
        return GiveUp(f"refused to start (exit code {ending.exit_code})")
    failures = 1 if ending.served_s >= policy.stable_s else failures + 1
    if not ending.ever_served and failures >= policy.give_up_after:
        return GiveUp(f"ended {failures} times in a row, last with {describe_exit(ending.exit_code)}")
    return Restart(policy.delays.delay_s(failures), failures)


def describe_exit(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"

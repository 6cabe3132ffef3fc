"""When a process that ended is started again: with growing pauses, and for ever once it has served."""

from dataclasses import dataclass

from pentimento.domain.backoff import Backoff


@dataclass(frozen=True)
class RestartPolicy:
    """Seconds. Serving for `stable_s` wipes the slate clean. A process that never served is given up when it has ended
    `give_up_after` times."""

    delays: Backoff = Backoff(first_s=0.1, max_s=5.0)
    stable_s: float = 5.0
    give_up_after: int = 8


@dataclass(frozen=True)
class Ending:
    """How a process ended: its exit code (negative: the signal), and for how long it served, 0 when it did not."""

    exit_code: int
    served_s: float
    ever_served: bool


@dataclass(frozen=True)
class Restart:
    """Start again after `delay_s`; `failures` is the count to hand to the next decision."""

    delay_s: float
    failures: int


@dataclass(frozen=True)
class GiveUp:
    reason: str


def decide(policy: RestartPolicy, failures: int, ending: Ending) -> Restart | GiveUp:
    """A service that refuses its first start (bad settings, a corrupt model) would refuse the next one too. One that
    has served is never given up: requests that were accepted wait for it."""
    if not ending.ever_served and ending.exit_code > 0:
        return GiveUp(f"refused to start (exit code {ending.exit_code})")
    failures = 1 if ending.served_s >= policy.stable_s else failures + 1
    if not ending.ever_served and failures >= policy.give_up_after:
        return GiveUp(f"ended {failures} times in a row, last with {describe_exit(ending.exit_code)}")
    return Restart(policy.delays.delay_s(failures), failures)


def describe_exit(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"

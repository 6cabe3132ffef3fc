"""Which steps of a controlled picture use the residuals of the step before, and when that is worth it (Katz, section 5:
pipelined asynchronous parallelization).

A residual that is a step old is there before it is needed: what its way takes hides behind a step. It may stand in for
the step's own where the two are alike, which is measured for each ControlNet. Which step uses which residuals follows
from numbers that are decided once a request. Nothing of it depends on when residuals come, so that a picture is painted
again with the same ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

# Cosine of the residuals of adjacent steps (Katz, figure 10).
ALIKE = 0.99
# Of what was measured before, when a picture's wait comes in.
_KEPT_SHARE = 0.8
_MAX_REMEMBERED = 1024


class PipeliningMode(Enum):
    """Of a deployment: never, wherever a ControlNet allows it, or where waiting would cost too much of a step."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"


@dataclass(frozen=True)
class PipeliningBound:
    """Bound a ControlNet of one model, as measured with schedules of `step_count` steps.

    From `first_step` on its residuals resemble those of the step before; 0 where they never do (Katz, section 5).
    """

    step_count: int
    first_step: int


def first_alike_step(cosines: Sequence[float], alike: float = ALIKE) -> int:
    """Return the first step from which on residuals resemble those of the step before; 0 where there is none.
    `cosines` begin with that of step 1 with step 0; one that is not above `alike` also keeps all steps before it."""
    unlike = [place for place, cosine in enumerate(cosines) if not cosine > alike]
    first = unlike[-1] + 2 if unlike else 1
    return first if first <= len(cosines) else 0


def allowed_from_step(bounds: Iterable[PipeliningBound], step_count: int) -> int:
    """Return the first step of a schedule of so many that may use the residuals of the step before; 0 for none.

    Fewer steps lie further apart, so a bound holds for its own number of steps and for more of them, at the same share
    of the schedule, rounded up.
    """
    fitting = [bound for bound in bounds if bound.step_count <= step_count]
    if not fitting:
        return 0
    bound = max(fitting, key=lambda one: one.step_count)
    first = -(-bound.first_step * step_count // bound.step_count)
    return first if first < step_count else 0


def allowed_from_step_of_all(first_steps: Iterable[int]) -> int:
    """Return the first step in which every ControlNet of a request allows it; 0 where one of them never does."""
    found = list(first_steps)
    return max(found) if found and all(found) else 0


@dataclass(frozen=True)
class ResidualSteps:
    """Which step's residuals one ControlNet adds in which step of one picture. `acting` are the steps that are painted
    in which it acts; `pipelined_from_step` is the request's, 0 for never."""

    acting: range
    pipelined_from_step: int = 0

    def used_in(self, step: int) -> int | None:
        """Return the step whose residuals are added in `step`: the one before it, or itself where the picture has not
        asked for those; None where the ControlNet does not act."""
        if step not in self.acting:
            return None
        pipelined = 0 < self.pipelined_from_step <= step and step - 1 in self.acting
        return step - 1 if pipelined else step

    def is_asked_in(self, step: int) -> bool:
        """Return whether any step uses the residuals of `step`: nobody does of a pipelined picture's last one."""
        return step in (self.used_in(step), self.used_in(step + 1))


@dataclass(frozen=True)
class PipeliningRule:
    """A deployment's rule. `least_wait_share` is the share of a step, 0..1, that waiting has to cost in AUTO."""

    mode: PipeliningMode = PipeliningMode.AUTO
    least_wait_share: float = 0.1

    def from_step(self, allowed: int, wait_share: float | None) -> int:
        """Return the first pipelined step of a request, 0 for a synchronous one. `wait_share` is the share of a
        synchronous step that was seen to pass waiting; None where nothing was seen yet."""
        if self.mode is PipeliningMode.AUTO:
            waits = wait_share is not None and wait_share >= self.least_wait_share
            return allowed if waits else 0
        return allowed if self.mode is PipeliningMode.ON else 0


def wait_share(
    waits_s: Mapping[int, float], synchronous: Iterable[int], step_count: int, seconds: float
) -> float | None:
    """Return the share of a synchronous step, 0..1, that passes waiting for residuals; None where no step tells.

    Of a picture whose `step_count` steps took `seconds`: `waits_s` by step, `synchronous` the steps that use residuals
    of their own, which begin with the one that opens the streams: that one tells nothing.
    """
    telling = sorted(synchronous)[1:]
    if not telling:
        return None
    working_s = max(seconds - sum(waits_s.values()), 0.0) / step_count
    waited_s = sum(waits_s.get(step, 0.0) for step in telling) / len(telling)
    return waited_s / (waited_s + working_s) if waited_s else 0.0


class ResidualWaits:
    """The share of a synchronous step that pictures waited for residuals, by their ControlNets, recent ones first."""

    def __init__(self) -> None:
        self._shares: dict[frozenset[str], float] = {}

    def learn(self, controlnets: Iterable[str], share: float) -> None:
        """Change state: a picture with these ControlNets (digests) waited for that share of its synchronous steps."""
        key = frozenset(controlnets)
        before = self._shares.pop(key, None)
        self._shares[key] = share if before is None else _KEPT_SHARE * before + (1.0 - _KEPT_SHARE) * share
        if len(self._shares) > _MAX_REMEMBERED:
            del self._shares[next(iter(self._shares))]

    def share(self, controlnets: Iterable[str]) -> float | None:
        """Return the share for these ControlNets; None where none of their pictures was seen."""
        return self._shares.get(frozenset(controlnets))

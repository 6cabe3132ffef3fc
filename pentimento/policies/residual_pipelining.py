"""Choose the steps of a controlled image that use the residuals of the step before (Katz, section 5: pipelined
asynchronous parallelization).

Residuals of the step before arrive before they are needed: their transfer overlaps with a step. They may replace the
step's own if the two are similar, which is measured for each ControlNet. Numbers decided once per request assign
residuals to steps. The assignment does not depend on arrival times, so a replay uses the same residuals.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

# Cosine of the residuals of adjacent steps (Katz, figure 10).
ALIKE = 0.99
# AUTO pipelines if waiting takes at least this share of a step.
LEAST_WAIT_SHARE = 0.1
# Weight of the earlier measurements when an image's wait is added.
_KEPT_SHARE = 0.8
_MAX_REMEMBERED = 1024


class PipeliningMode(Enum):
    """State when a deployment pipelines: never, if the ControlNets allow it, or if waiting also takes too long."""

    OFF = "off"
    ON = "on"
    AUTO = "auto"


@dataclass(frozen=True)
class PipeliningBound:
    """Bound the pipelining of a ControlNet with one model, measured with schedules of `step_count` steps.

    From `first_step` on its residuals resemble those of the step before; 0 if they never do (Katz, section 5).
    """

    step_count: int
    first_step: int


def first_alike_step(cosines: Sequence[float], alike: float = ALIKE) -> int:
    """Return the first step such that it and all later steps have residuals similar to the step before; 0 for none.
    `cosines` begin with steps 1 and 0; a value that is not above `alike` also excludes all earlier steps."""
    unlike = [place for place, cosine in enumerate(cosines) if not cosine > alike]
    first = unlike[-1] + 2 if unlike else 1
    return first if first <= len(cosines) else 0


def allowed_from_step(bounds: Iterable[PipeliningBound], step_count: int) -> int:
    """Return the first step of `step_count` that may use the residuals of the step before; 0 for none.

    Fewer steps are further apart, so a bound holds only for its own number of steps or more, at the same share of the
    schedule, rounded up.
    """
    fitting = [bound for bound in bounds if bound.step_count <= step_count]
    if not fitting:
        return 0
    bound = max(fitting, key=lambda one: one.step_count)
    first = -(-bound.first_step * step_count // bound.step_count)
    return first if first < step_count else 0


def allowed_from_step_of_all(first_steps: Iterable[int]) -> int:
    """Return the first step that every ControlNet of a request allows; 0 if one never does."""
    found = list(first_steps)
    return max(found) if found and all(found) else 0


@dataclass(frozen=True)
class ResidualSteps:
    """Assign one ControlNet's residuals to the steps of one image. `acting`: the denoised steps with this ControlNet
    active; `pipelined_from_step`: the request's first pipelined step, 0 for never."""

    acting: range
    pipelined_from_step: int = 0

    def used_in(self, step: int) -> int | None:
        """Return the source step of the residuals added in `step`: the step before if pipelined, else itself; None if
        the ControlNet is inactive."""
        if step not in self.acting:
            return None
        pipelined = 0 < self.pipelined_from_step <= step and step - 1 in self.acting
        return step - 1 if pipelined else step

    def is_asked_in(self, step: int) -> bool:
        """Return whether any step uses the residuals of `step`; a pipelined image's last residuals are unused."""
        return step in (self.used_in(step), self.used_in(step + 1))


def pipelined_from(mode: PipeliningMode, allowed: int, wait_share: float | None) -> int:
    """Return the first pipelined step of a request; 0 for a synchronous one. `wait_share` is the measured share of a
    synchronous step spent waiting; None before the first measurement."""
    waits = mode is PipeliningMode.ON or (wait_share is not None and wait_share >= LEAST_WAIT_SHARE)
    return allowed if waits and mode is not PipeliningMode.OFF else 0


def wait_share(
    waits_s: Mapping[int, float], synchronous: Iterable[int], step_count: int, seconds: float
) -> float | None:
    """Return the share (0..1) of a synchronous step spent waiting for residuals; None if no step shows it.

    The image's `step_count` steps took `seconds`, with `waits_s` by step. `synchronous`: the steps that use their own
    residuals; the first is ignored, as it opens the streams.
    """
    telling = sorted(synchronous)[1:]
    if not telling:
        return None
    working_s = max(seconds - sum(waits_s.values()), 0.0) / step_count
    waited_s = sum(waits_s.get(step, 0.0) for step in telling) / len(telling)
    return waited_s / (waited_s + working_s) if waited_s else 0.0


class ResidualWaits:
    """Average the share of a synchronous step spent waiting for residuals, by an image's ControlNets."""

    def __init__(self) -> None:
        self._shares: dict[frozenset[str], float] = {}

    def learn(self, controlnets: Iterable[str], share: float) -> None:
        """Add the share that an image with these ControlNets (digests) waited in its synchronous steps."""
        key = frozenset(controlnets)
        before = self._shares.pop(key, None)
        self._shares[key] = share if before is None else _KEPT_SHARE * before + (1.0 - _KEPT_SHARE) * share
        if len(self._shares) > _MAX_REMEMBERED:
            del self._shares[next(iter(self._shares))]

    def share(self, controlnets: Iterable[str]) -> float | None:
        """Return the share for these ControlNets; None without a measured image."""
        return self._shares.get(frozenset(controlnets))

"""Decide when two workers denoise one image, with one half of its guidance each (Katz, section 7: latent parallelism).

A pair takes more device time than one worker: two separate halves take longer than both in one batch. So a pair serves
a request only if the second worker is idle (the dataplane ensures it), the deadline is near enough to gain by a pair,
and a paired step was measured to be shorter than a whole one.
"""

import math
from collections import deque
from enum import Enum
from statistics import median

from pentimento.domain.generation import GenerationSpec, Route

# Least length of a whole step, in paired steps, for a pair to begin: below it the second device gains almost nothing.
# A running pair continues while the gain is at most `_SCATTER` times lower, the scatter of the measurements.
MIN_GAIN = 1.1
_SCATTER = 1.1
# A request gains by a pair while less than this multiple of its service time is left.
TIGHT_SHARE = 2.0
# Whole steps and halves that are compared whenever one kind follows the other, and comparisons remembered.
_COMPARED_STEPS = 16
_REMEMBERED = 128
# Paired steps before a gain is known: in the first ones both workers compute a half for the first time.
_TRIAL_STEPS = 16
# Whole steps until a pair that did not pay is tried again, since the peer may have been busy; doubled after each trial
# that does not pay.
_TRY_AGAIN_STEPS = 64
_TRY_AGAIN_AT_LAST_STEPS = 1024
# Least wait for a peer: the scheduler of an operating system takes as long.
_LEAST_PATIENCE_S = 0.02
# Least wait if the peer opens streams to ControlNets before its first half of an image: a timeout would end the pair.
_OPENING_PATIENCE_S = 0.5


class PairingMode(Enum):
    """Select the requests that a pair serves if a second worker is idle."""

    OFF = "off"
    DEADLINE = "deadline"
    ALWAYS = "always"


def can_pair(spec: GenerationSpec, route: Route) -> bool:
    """Return whether two workers can compute the halves of an image. False for a replay, which must keep its bits, for
    image prompts, which a peer does not receive, for ControlNet-Unions (their rows attend to each other), and for
    pipelined residuals: a worker that continues after its peer lacks those of both halves from the step before."""
    whole = not (route.pipelined_from_step or route.full_steps or spec.image_prompts)
    whole = whole and all(net.kind is None for net in spec.controlnets)
    return spec.guidance_scale > 1.0 and not route.replay_of and whole


def deadline_gains(remaining_s: float, alone_s: float | None, tight_share: float = TIGHT_SHARE) -> bool:
    """Return whether a pair should serve a request with `remaining_s` seconds to its deadline that takes `alone_s` on
    one worker; False if that is unknown (None)."""
    return alone_s is not None and remaining_s < tight_share * alone_s


class PairPace:
    """Measure the seconds of steps of one size on a worker: whole steps, its own halves of paired steps, and paired
    steps from sending the latents until both halves are present.

    A machine's speed varies by as much as a pair gains, so only adjacent steps are compared: the gain is the ratio of a
    whole step to a half computed just before or after it, times the share of a half in its paired step."""

    def __init__(self) -> None:
        self._whole_s: deque[float] = deque(maxlen=_COMPARED_STEPS)
        self._half_s: deque[float] = deque(maxlen=_COMPARED_STEPS)
        self._halves_of_whole: deque[float] = deque(maxlen=_REMEMBERED)
        self._half_shares: deque[float] = deque(maxlen=_TRIAL_STEPS)
        # Consecutive steps of either kind.
        self._whole_steps = self._paired_steps = 0
        self._try_again_steps = _TRY_AGAIN_STEPS
        self._goes_on = False

    def took_whole(self, seconds: float) -> None:
        """Record a step of one image with both halves computed here, in one batch."""
        self._whole_s.append(seconds)
        self._whole_steps, self._paired_steps = self._whole_steps + 1, 0
        if self._half_s and self._whole_steps <= _COMPARED_STEPS:
            self._compare(seconds, median(self._half_s))
        self._judge()
        if self._whole_steps >= self._try_again_steps and not self.pays:
            self._half_shares.clear()
            self._try_again_steps = min(2 * self._try_again_steps, _TRY_AGAIN_AT_LAST_STEPS)

    def took_paired(self, seconds: float, own_half_s: float) -> None:
        """Record a paired step of `seconds` until the peer's half arrived; this worker's half took `own_half_s`."""
        self._half_s.append(own_half_s)
        self._half_shares.append(own_half_s / seconds if seconds > 0.0 else 1.0)
        self._whole_steps, self._paired_steps = 0, self._paired_steps + 1
        if self._whole_s and self._paired_steps <= _COMPARED_STEPS:
            self._compare(median(self._whole_s), own_half_s)
        self._judge()

    @property
    def gain(self) -> float | None:
        """Return the seconds of a whole step per second of a paired one, by medians; None while unknown."""
        if not self._halves_of_whole or len(self._half_shares) < _TRIAL_STEPS:
            return None
        return median(self._halves_of_whole) * median(self._half_shares)

    @property
    def pays(self) -> bool:
        """Return whether the next step is worth a peer; True until a trial has ended."""
        gain = self.gain
        return gain is None or gain * (_SCATTER if self._goes_on else 1.0) >= MIN_GAIN

    def _compare(self, whole_s: float, half_s: float) -> None:
        self._halves_of_whole.append(whole_s / half_s if half_s > 0.0 else math.inf)

    def _judge(self) -> None:
        self._goes_on = self.gain is not None and self.pays
        if self._goes_on:
            self._try_again_steps = _TRY_AGAIN_STEPS

    def patience_s(self, own_half_s: float, *, opens_control: bool = False) -> float:
        """Return the seconds to wait for a peer's half after the own half, which took `own_half_s`: as long as both
        would take here. So a peer that never answers costs at most twice a step's time; a shorter or longer wait may
        lose more. `opens_control`: the peer opens streams to ControlNets in this step."""
        both_s = median(self._whole_s) if self._whole_s else 2.0 * own_half_s
        return max(both_s, _OPENING_PATIENCE_S if opens_control else _LEAST_PATIENCE_S)

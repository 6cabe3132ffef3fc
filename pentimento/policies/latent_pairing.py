"""When two workers paint one picture, the halves of its guidance on one each (Katz, section 7: latent parallelism).

A pair takes more device time than one worker: twice that of a half, where both halves in one batch take less. So a
request is painted by a pair only where the second worker has nothing else to do (the dataplane sees to that), where its
deadline is near enough to gain by it, and where a paired step was measured to be shorter than a whole one.
"""

import math
from collections import deque
from enum import Enum
from statistics import median

from pentimento.domain.generation import GenerationSpec, Route

# A whole step must be so many times as long as a paired one for a pair to begin: below it the second device buys next
# to nothing. It goes on until the gain is so many times less: what is measured scatters by as much as that.
MIN_GAIN = 1.1
_SCATTER = 1.1
# A request gains by a pair while less than so many times its own service time is left.
TIGHT_SHARE = 2.0
# Steps that are compared, whole ones and halves, whenever the one kind follows the other; and comparisons remembered.
_COMPARED_STEPS = 16
_REMEMBERED = 128
# Paired steps before they are judged: in the first ones both workers compute a half for the first time.
_TRIAL_STEPS = 16
# After so many whole steps a pair that did not pay is tried again, since the peer may have been busy then; after twice
# as many each time that it did not pay again.
_TRY_AGAIN_STEPS = 64
_TRY_AGAIN_AT_LAST_STEPS = 1024
# No peer is given up sooner: the scheduler of an operating system takes as long.
_LEAST_PATIENCE_S = 0.02
# Nor sooner where it opens streams to ControlNets before its first half of a picture: giving it up then ends the pair.
_OPENING_PATIENCE_S = 0.5


class PairingMode(Enum):
    """Which requests are painted by a pair where a second worker idles."""

    OFF = "off"
    DEADLINE = "deadline"
    ALWAYS = "always"


def can_pair(spec: GenerationSpec, route: Route) -> bool:
    """Return whether a picture has two halves that two workers can compute. Not a replay, which is to have the bits
    that it had. Nor one whose residuals are a step old: whoever paints on alone has none of both halves from the step
    before."""
    return spec.guidance_scale > 1.0 and not route.replay_of and not route.pipelined_from_step


def deadline_gains(remaining_s: float, alone_s: float | None, tight_share: float = TIGHT_SHARE) -> bool:
    """Return whether a request with `remaining_s` seconds to its deadline is to be painted by a pair, if it takes
    `alone_s` on one worker; None where that is not known, and no deadline is known to be near."""
    return alone_s is not None and remaining_s < tight_share * alone_s


class PairPace:
    """What steps of one size take on a worker, in seconds: whole ones; the halves that it computes of paired ones; and
    paired ones from their latents' leaving to both halves being there.

    A machine is now slower, now faster, by as much as a pair gains. So no step is compared with one of long ago: a
    pair's gain is what a whole step takes more than a half that was computed just before or after it, times the share
    that a half has of its own paired step."""

    def __init__(self) -> None:
        self._whole_s: deque[float] = deque(maxlen=_COMPARED_STEPS)
        self._half_s: deque[float] = deque(maxlen=_COMPARED_STEPS)
        self._halves_of_whole: deque[float] = deque(maxlen=_REMEMBERED)
        self._half_shares: deque[float] = deque(maxlen=_TRIAL_STEPS)
        # In a row, of either kind.
        self._whole_steps = self._paired_steps = 0
        self._try_again_steps = _TRY_AGAIN_STEPS
        self._goes_on = False

    def took_whole(self, seconds: float) -> None:
        """Note a step of one picture whose halves were computed here, in one batch."""
        self._whole_s.append(seconds)
        self._whole_steps, self._paired_steps = self._whole_steps + 1, 0
        if self._half_s and self._whole_steps <= _COMPARED_STEPS:
            self._compare(seconds, median(self._half_s))
        self._judge()
        if self._whole_steps >= self._try_again_steps and not self.pays:
            self._half_shares.clear()
            self._try_again_steps = min(2 * self._try_again_steps, _TRY_AGAIN_AT_LAST_STEPS)

    def took_paired(self, seconds: float, own_half_s: float) -> None:
        """Note a step whose other half came from a peer, `seconds` after it began, of which the own half took
        `own_half_s`."""
        self._half_s.append(own_half_s)
        self._half_shares.append(own_half_s / seconds if seconds > 0.0 else 1.0)
        self._whole_steps, self._paired_steps = 0, self._paired_steps + 1
        if self._whole_s and self._paired_steps <= _COMPARED_STEPS:
            self._compare(median(self._whole_s), own_half_s)
        self._judge()

    @property
    def gain(self) -> float | None:
        """The seconds of a whole step for each second of a paired one, by medians; None while unknown."""
        if not self._halves_of_whole or len(self._half_shares) < _TRIAL_STEPS:
            return None
        return median(self._halves_of_whole) * median(self._half_shares)

    @property
    def pays(self) -> bool:
        """Whether the next step is worth a peer; so it is until it was tried."""
        gain = self.gain
        return gain is None or gain * (_SCATTER if self._goes_on else 1.0) >= MIN_GAIN

    def _compare(self, whole_s: float, half_s: float) -> None:
        self._halves_of_whole.append(whole_s / half_s if half_s > 0.0 else math.inf)

    def _judge(self) -> None:
        self._goes_on = self.gain is not None and self.pays
        if self._goes_on:
            self._try_again_steps = _TRY_AGAIN_STEPS

    def patience_s(self, own_half_s: float, *, opens_control: bool = False) -> float:
        """Return how long a peer's half is waited for once the own one is there, which took `own_half_s`: as long as
        computing both here. So a peer that never answers costs a step at most twice its time; whoever gives up sooner,
        or later, may lose more. `opens_control`: the peer opens streams to ControlNets in this step."""
        both_s = median(self._whole_s) if self._whole_s else 2.0 * own_half_s
        return max(both_s, _OPENING_PATIENCE_S if opens_control else _LEAST_PATIENCE_S)

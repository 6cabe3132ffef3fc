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

# A paired step must be so much shorter: below it the second device buys next to nothing.
MIN_GAIN = 1.1
# A request gains by a pair while less than so many times its own service time is left.
TIGHT_SHARE = 2.0
# Steps whose seconds are remembered.
_REMEMBERED = 16
# Paired steps before they are judged.
_TRIAL_STEPS = 4
# After so many whole steps a pair that did not pay is tried again: the peer may have been busy then.
_TRY_AGAIN_STEPS = 500
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
    """What whole and paired steps of one size take on a worker, in seconds. A paired step's seconds are those from its
    latents' leaving to both halves being there: the half, and what transport takes beside it."""

    def __init__(self) -> None:
        self._whole_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._paired_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._whole_steps = 0

    def took_whole(self, seconds: float) -> None:
        """Note a step of one picture whose halves were computed here, in one batch."""
        self._whole_s.append(seconds)
        self._whole_steps += 1
        if self._whole_steps >= _TRY_AGAIN_STEPS and not self.pays:
            self._paired_s.clear()

    def took_paired(self, seconds: float) -> None:
        """Note a step whose other half came from a peer."""
        self._paired_s.append(seconds)
        self._whole_steps = 0

    @property
    def gain(self) -> float | None:
        """The seconds of a whole step for each second of a paired one, by their medians; None while unknown."""
        if not self._whole_s or len(self._paired_s) < _TRIAL_STEPS:
            return None
        paired_s = median(self._paired_s)
        return median(self._whole_s) / paired_s if paired_s > 0.0 else math.inf

    @property
    def pays(self) -> bool:
        """Whether the next step is worth a peer; so it is until it was tried."""
        gain = self.gain
        return gain is None or gain >= MIN_GAIN

    def patience_s(self, own_half_s: float, *, opens_control: bool = False) -> float:
        """Return how long a peer's half is waited for once the own one is there, which took `own_half_s`: as long as
        computing both here. So a peer that never answers costs a step at most twice its time; whoever gives up sooner,
        or later, may lose more. `opens_control`: the peer opens streams to ControlNets in this step."""
        both_s = median(self._whole_s) if self._whole_s else 2.0 * own_half_s
        return max(both_s, _OPENING_PATIENCE_S if opens_control else _LEAST_PATIENCE_S)

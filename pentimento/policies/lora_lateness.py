"""How late a LoRA may come (Katz, section 6: the asynchrony bound K), from pictures painted with it on time and late.

Katz sets K where the latents with and without the LoRA stop being alike (cosine 0.99). That says what the picture loses
until then, not what the LoRA would have made of it: a style can be lost within steps that look alike. So a sample here
is a picture whose LoRA came after K steps, compared with the same picture with the LoRA from the start: how alike the
final latents are, and how much is left of what the LoRA changes. It is kept when both are high enough. From samples to
K by the rules of `selector_profiling`:

- MINIMUM: every picture is kept.
- LOWER_BOUND: the lower 95 % bound of the share of pictures that are kept is at least 0.95.
- MEAN: the lower 95 % bounds of both means are high enough. It says nothing of any single picture.

`latest_alike_steps` is Katz's own K of the same pictures, to compare with. No rule goes past a K that it does not
allow: what holds of a later one behind it is luck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pentimento.policies.selector_profiling import REQUIRED_SHARE, ThresholdRule, mean_is_surely, share_is_surely

LEAST_COSINE = 0.99
LEAST_STRENGTH = 0.95


@dataclass(frozen=True)
class LateSample:
    """One picture whose LoRA came late: `cosine` of its final latent and that of the picture with the LoRA from the
    start; `strength`, the share of the LoRA's own change that is there: 1 as from the start, 0 as without it. `alike`:
    cosine, after those K steps, of the latents with the LoRA and without it."""

    cosine: float
    strength: float
    alike: float

    @property
    def is_kept(self) -> bool:
        """Whether it is as alike and as strong as K asks for. NaN is neither."""
        return self.cosine >= LEAST_COSINE and self.strength >= LEAST_STRENGTH


def allows(samples: Sequence[LateSample], rule: ThresholdRule) -> bool:
    """Return whether the pictures of one K satisfy the rule. No pictures satisfy none."""
    kept = sum(sample.is_kept for sample in samples)
    if rule is ThresholdRule.MINIMUM:
        return kept == len(samples) > 0
    if rule is ThresholdRule.LOWER_BOUND:
        return share_is_surely(kept, len(samples), REQUIRED_SHARE)
    alike = mean_is_surely([sample.cosine - LEAST_COSINE for sample in samples])
    return alike and mean_is_surely([sample.strength - LEAST_STRENGTH for sample in samples])


def latest_alike_steps(by_steps: Mapping[int, Sequence[LateSample]]) -> int:
    """Return Katz's K: the most steps tried over which the latents with the LoRA and without it stay alike in the
    mean."""
    latest = 0
    for steps in sorted(by_steps):
        if not fmean(sample.alike for sample in by_steps[steps]) >= LEAST_COSINE:
            break
        latest = steps
    return latest


def latest_steps(by_steps: Mapping[int, Sequence[LateSample]], rule: ThresholdRule) -> int:
    """Return K: the most steps that may run without the LoRA, of the numbers of steps that were tried; 0 where the
    fewest are too many."""
    latest = 0
    for steps in sorted(by_steps):
        if not allows(by_steps[steps], rule):
            break
        latest = steps
    return latest

"""Decide when a cascade's light stage is skipped: its image would be rejected, or costs more than it saves.

A rejected light image costs device seconds and the client's time (DiffServe, section 3.1, pays them for every deferred
request). A prompt says less than its image, so only prompts that are sure to be hard are skipped, and none that the
threshold in force would accept. An accepted light image saves the next stage: with probability p it saves p times the
next stage's seconds, and it costs its own (`price`: own ÷ next).
"""

from dataclasses import replace

from pentimento.domain.fleet import CascadePlan


def skip_bound(own: float | None, planned: float) -> float:
    """Return the probability below which a prompt is sure to be hard, 0 for never: the operator's, else the plan's."""
    return planned if own is None else own


def with_skip_bound(cascades: tuple[CascadePlan, ...], bound: float) -> tuple[CascadePlan, ...]:
    """Return the cascades with that bound at each first stage without one. Only first stages are predicted."""

    def bounded(cascade: CascadePlan) -> CascadePlan:
        first, *others = cascade.stages
        first = first if first.skip_below or not others else replace(first, skip_below=bound)
        return replace(cascade, stages=(first, *others))

    return tuple(bounded(cascade) for cascade in cascades)


def leaves_out_light(foreseen: float | None, bound: float, threshold: float | None, price: float = 0.0) -> bool:
    """Return whether the light stage is skipped.

    `foreseen`: the probability, 0..1, by the prompt only, that the light image would be accepted; None if it was not
    predicted: then only a stage that could not pay for any prompt is skipped. `bound`: below it a prompt is sure to be
    hard; 0 for never. `threshold`: the confidence that a light image must exceed now; None if it is not scored.
    `price`: seconds of the light stage ÷ those of the next; 0 if unknown. A number outside 0..1 counts as None.
    """
    if threshold is None:
        return False
    if foreseen is None or not 0.0 <= foreseen <= 1.0:
        return price >= 1.0
    return (price > 0.0 and foreseen <= price) or (foreseen < bound and foreseen <= threshold)

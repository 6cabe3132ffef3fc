"""When a cascade's light stage is left out: where the prompt alone tells that its picture would not do.

A light picture that is painted only to be refused costs device-seconds and the client's time (DiffServe, section 3.1,
pays them for every request that it defers). What a prompt tells is less than what its picture tells, so only what is
sure to be hard is left out, and nothing that the threshold in force would accept.
"""

from dataclasses import replace

from pentimento.domain.fleet import CascadePlan


def skip_bound(own: float | None, planned: float) -> float:
    """Return the probability below which a prompt is sure to be hard, 0 for never: the operator's own where there is
    one, else the plan's."""
    return planned if own is None else own


def with_skip_bound(cascades: tuple[CascadePlan, ...], bound: float) -> tuple[CascadePlan, ...]:
    """Return the cascades with that bound for their first stages, which alone are foreseen, where their allocator has
    decided on none."""

    def bounded(cascade: CascadePlan) -> CascadePlan:
        first, *others = cascade.stages
        first = first if first.skip_below or not others else replace(first, skip_below=bound)
        return replace(cascade, stages=(first, *others))

    return tuple(bounded(cascade) for cascade in cascades)


def leaves_out_light(foreseen: float | None, bound: float, threshold: float | None) -> bool:
    """Return whether the light stage is left out.

    `foreseen`: the probability, 0..1, by the prompt alone, that the light picture would be good enough; None where
    nobody told. `bound`: below it a prompt is sure to be hard; 0 for never. `threshold`: the confidence that a light
    picture must exceed now; None where it is not scored at all. A number outside 0..1 counts as none.
    """
    if foreseen is None or threshold is None or not 0.0 <= foreseen <= 1.0:
        return False
    return foreseen < bound and foreseen <= threshold

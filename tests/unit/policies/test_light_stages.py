"""When the light stage of a cascade is left out."""

import math
from dataclasses import replace

import pytest

from pentimento.domain.fleet import CascadePlan, StagePlan
from pentimento.policies.light_stages import leaves_out_light, skip_bound, with_skip_bound


@pytest.mark.parametrize(
    ("foreseen", "bound", "threshold", "left_out"),
    [
        (0.04, 0.05, 0.5, True),
        (0.05, 0.05, 0.5, False),  # the bound itself is not below it
        (0.0, 0.0, 0.5, False),  # off
        (0.04, 0.05, 0.04, True),  # the threshold itself is not enough for a picture
        (0.04, 0.05, 0.03, False),  # under load the threshold in force would accept the picture
        (0.0, 0.05, 0.0, True),
        (0.04, 0.05, None, False),  # its pictures are not scored
        (None, 0.05, 0.5, False),
        (math.nan, 1.0, 0.5, False),
        (-0.1, 1.0, 0.5, False),
        (-math.inf, 1.0, 0.5, False),
    ],
)
def test_only_what_is_sure_to_be_refused_is_left_out(
    foreseen: float | None, bound: float, threshold: float | None, left_out: bool
) -> None:
    assert leaves_out_light(foreseen, bound, threshold) is left_out


@pytest.mark.parametrize(
    ("foreseen", "price", "skipped"),
    [
        (0.8, 0.81, True),
        (0.8, 0.8, True),
        (0.8, 0.79, False),
        (1.0, 1.0, True),
        (None, 1.0, True),  # pays for no prompt
        (None, 0.99, False),
        (math.nan, 1.2, True),
        (0.0, 0.0, False),  # an unknown price says nothing
    ],
)
def test_light_stage_that_costs_more_than_it_saves_is_skipped(
    foreseen: float | None, price: float, skipped: bool
) -> None:
    assert leaves_out_light(foreseen, 0.0, 0.9, price) is skipped
    assert not leaves_out_light(foreseen, 0.0, None, price)


@pytest.mark.parametrize(("own", "planned", "bound"), [(None, 0.3, 0.3), (0.0, 0.3, 0.0), (0.5, 0.3, 0.5)])
def test_the_operator_s_own_bound_is_before_the_plan_s(own: float | None, planned: float, bound: float) -> None:
    assert skip_bound(own, planned) == bound


def test_the_first_stage_of_a_cascade_gets_the_bound_where_its_allocator_decided_on_none() -> None:
    light, heavy = StagePlan("light"), StagePlan("heavy")
    decided, alone = replace(light, skip_below=0.2), CascadePlan("alone", (light,))
    cascades = (CascadePlan("a", (light, heavy)), CascadePlan("b", (decided, heavy)), alone)

    assert with_skip_bound(cascades, 0.1) == (
        CascadePlan("a", (replace(light, skip_below=0.1), heavy)),
        CascadePlan("b", (decided, heavy)),
        alone,
    )

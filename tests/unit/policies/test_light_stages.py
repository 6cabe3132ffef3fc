"""When the light stage of a cascade is left out."""

import math

import pytest

from pentimento.policies.light_stages import leaves_out_light


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

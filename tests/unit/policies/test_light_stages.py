"""Test when the light stage of a cascade is left out."""

import math

from pentimento.domain.foresight import PromptForesight, Verdict
from pentimento.policies.light_stages import leaves_out_light, needs_no_score

LEFT_OUT: list[tuple[float | None, float, float | None, bool]] = [
    (0.04, 0.05, 0.5, True),
    (0.05, 0.05, 0.5, False),  # the bound itself is not below it
    (0.0, 0.0, 0.5, False),  # off
    (0.04, 0.05, 0.04, True),  # the threshold itself does not accept an image
    (0.04, 0.05, 0.03, False),  # under load the threshold in force would accept the image
    (0.0, 0.05, 0.0, True),
    (0.04, 0.05, None, False),  # its images are not scored
    (None, 0.05, 0.5, False),
    (math.nan, 1.0, 0.5, False),
    (-0.1, 1.0, 0.5, False),
    (-math.inf, 1.0, 0.5, False),
]


def test_leaves_out_light_only_below_bound_and_threshold() -> None:
    found = [leaves_out_light(predicted(row[0]), *row[1:3]) for row in LEFT_OUT]

    assert found == [row[3] for row in LEFT_OUT]


def predicted(probability: float | None, verdict: Verdict = Verdict.UNSURE) -> PromptForesight | None:
    return None if probability is None else PromptForesight(probability, verdict, 0.4)


VERDICTS: list[tuple[Verdict, float, tuple[bool, bool]]] = [
    (Verdict.HARD, 0.4, (True, False)),
    (Verdict.HARD, 0.5, (True, False)),  # at a higher threshold even more images are deferred
    (Verdict.HARD, 0.39, (False, False)),
    (Verdict.EASY, 0.4, (False, True)),
    (Verdict.EASY, 0.3, (False, True)),
    (Verdict.EASY, 0.41, (False, False)),
    (Verdict.UNSURE, 0.4, (False, False)),
]


def test_verdict_holds_at_its_threshold_and_beyond() -> None:
    for verdict, threshold, decided in VERDICTS:
        foresight = predicted(0.5, verdict)
        assert (leaves_out_light(foresight, None, threshold), needs_no_score(foresight, threshold)) == decided
        assert not leaves_out_light(foresight, 0.0, threshold), "the operator turned it off"
    assert not needs_no_score(predicted(math.nan, Verdict.EASY), 0.4)


PRICES: list[tuple[float | None, float, bool]] = [
    (0.8, 0.81, True),
    (0.8, 0.8, True),
    (0.8, 0.79, False),
    (1.0, 1.0, True),
    (None, 1.0, True),  # pays for no prompt
    (None, 0.99, False),
    (math.nan, 1.2, True),
    (0.0, 0.0, False),  # an unknown price decides nothing
]


def test_leaves_out_light_that_costs_more_than_it_saves() -> None:
    for foreseen, price, skipped in PRICES:
        assert leaves_out_light(predicted(foreseen), 0.0, 0.9, price) is skipped
        assert not leaves_out_light(predicted(foreseen), 0.0, None, price)

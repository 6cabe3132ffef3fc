"""Samples of the allocation."""

import math
from dataclasses import replace

import pytest

from pentimento.cli.allocation_samples import (
    AllocationSample,
    plain_cascade,
    plain_pool,
    plain_stage,
    sample_of_plan,
    sparkline,
    violation_shares,
)
from pentimento.domain.fleet import CascadePlan, Plan, StagePlan, StartThreshold, WorkerAssignment
from pentimento.domain.generation import PlanVersion

PLAN = Plan(
    PlanVersion(7, 2),
    (
        WorkerAssignment("w1", "unix:/w1", "light", 1),
        WorkerAssignment("w2", "unix:/w2", "heavy", 1),
        WorkerAssignment("w3", "unix:/w3", "light", 1),
    ),
    admission_rate=0.5,
    allocator="diffserve",
    cascades=(
        CascadePlan(
            "light>heavy",
            (StagePlan("light", (StartThreshold("noise", 0.6), StartThreshold("image", 0.4))), StagePlan("heavy")),
        ),
    ),
)
FIRST = sample_of_plan(1.0, PLAN, accepted_count=10, completed_count=8, failed_count=1, rejected_count=0)
SECOND = replace(FIRST, at_s=2.0, workers={"heavy": 3}, thresholds={}, accepted_count=16, rejected_count=2)


def test_a_plan_tells_workers_by_model_and_thresholds_by_stage() -> None:
    assert (FIRST.plan, FIRST.allocator, FIRST.admission_rate) == ("7.2", "diffserve", 0.5)
    assert FIRST.workers == {"heavy": 1, "light": 2}
    assert FIRST.thresholds == {"light>heavy light": 0.6}


def test_violations_are_counted_between_two_samples() -> None:
    """Two of eight arrivals were rejected."""
    began_anew = AllocationSample(3.0, "8.1")

    shares = violation_shares((FIRST, SECOND, SECOND, began_anew))

    assert shares[0] == 0.25
    assert all(math.isnan(share) for share in shares[1:])


def test_an_answer_that_came_late_breaks_its_slo_too() -> None:
    """Two of eight arrivals were rejected, and one answer was late."""
    assert violation_shares((FIRST, replace(SECOND, late_count=1))) == (0.375,)


def test_a_line_of_characters_rises_with_its_values() -> None:
    assert sparkline((0.0, 0.5, 1.0, math.nan, 2.0, -1.0), 1.0) == "▁▅█ █▁"


MODELS = {"heavy": "heavy", "heavy.1": "heavy", "sd-1.5": "sd-1.5", "sd-1.5.1": "sd-1.5"}


@pytest.mark.parametrize(
    ("pool", "plain"),
    [
        ("heavy", "heavy"),
        ("heavy.1", "heavy (pool 2)"),
        ("sd-1.5", "sd-1.5"),
        ("sd-1.5.1", "sd-1.5 (pool 2)"),
        ("unplanned.1", "unplanned.1"),
    ],
)
def test_plain_pool_is_called_by_its_model(pool: str, plain: str) -> None:
    assert plain_pool(pool, MODELS) == plain


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("light>heavy", "light → heavy"),
        ("a>b>c", "a → b → c"),
        ("noise:light>heavy#0", "light → heavy from noise"),
        ("latent:light>heavy#1", "light → heavy from latent, threshold 2"),
        ("noise:heavy~light", "heavy from noise, or light if that would be late"),
    ],
)
def test_plain_cascade_is_light_to_heavy(name: str, plain: str) -> None:
    assert plain_cascade(name) == plain


def test_plain_stage_names_cascade_and_pool() -> None:
    assert plain_stage("noise:light>heavy#0 heavy.1", MODELS) == "light → heavy from noise, at heavy (pool 2)"

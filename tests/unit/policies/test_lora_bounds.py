"""The file of bounds: written and read back, and refused with what is wrong with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.policies.lora_bounds import (
    LoraBound,
    bounds_from_json,
    bounds_to_json,
    late_steps,
    merged,
    read_lora_bounds,
)
from pentimento.policies.lora_lateness import LateSample
from pentimento.policies.selector_profiling import ThresholdRule

PICTURES = [LateSample(0.999, 0.99, 0.998)] * 59 + [LateSample(0.98, 0.97, 0.998)]
MEASURED = LoraBound(
    "sha256:neon", "sha256:heavy", 0.02, "neon", "heavy", ThresholdRule.MEAN, 50, 3, (late_steps(1, PICTURES),)
)


def test_what_is_written_is_read_back() -> None:
    assert bounds_from_json(bounds_to_json([MEASURED])) == (MEASURED,)
    (row,) = MEASURED.measured
    assert (row.picture_count, row.kept_count, row.lowest_cosine, row.lowest_strength) == (60, 59, 0.98, 0.97)
    assert row.allowed == (ThresholdRule.MEAN,)


def test_three_fields_are_enough() -> None:
    entry = {"lora_digest": "sha256:a", "model_digest": "sha256:b", "latest_start_fraction": 0.2}

    (found,) = bounds_from_json(json.dumps({"format": 1, "bounds": [entry]}))

    assert found == LoraBound("sha256:a", "sha256:b", 0.2)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "must be JSON"),
        ("[]", "format"),
        ('{"format": 2, "bounds": []}', "format"),
        ('{"format": 1}', "bounds"),
        ('{"format": 1, "bounds": [1]}', r"bounds\[0\]"),
        (bounds_to_json([replace(MEASURED, latest_start_fraction=1.5)]), "latest_start_fraction"),
        (bounds_to_json([MEASURED, replace(MEASURED, lora="other")]), r"bounds\[1\]"),
    ],
)
def test_what_is_wrong_is_named(text: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "lora-bounds.json"
    path.write_text(text)

    with pytest.raises(InvalidArgument, match=rf"lora-bounds\.json.*{wrong}"):
        read_lora_bounds(path)


def test_a_lora_that_is_measured_again_has_one_bound() -> None:
    other = replace(MEASURED, model_digest="sha256:light", model="light")
    again = replace(MEASURED, latest_start_fraction=0.0)

    assert merged([MEASURED, other], [again]) == (again, other)


def test_what_the_file_need_not_say_is_nothing() -> None:
    bound = LoraBound("sha256:a", "sha256:b", 0.2)

    assert (bound.lora, bound.model, bound.rule, bound.step_count, bound.alike_steps) == ("", "", None, 0, 0)
    assert (bound.measured, bound.prompts, bound.build_version, bound.measured_at) == ((), "", "", "")


def test_a_row_has_means_and_lowest_of_what_was_measured_to_some_digits() -> None:
    row = late_steps(7, [LateSample(0.999, 0.9, 0.5), LateSample(0.9, 0.7, 0.25)])

    assert (row.steps, row.picture_count, row.kept_count, row.allowed) == (7, 2, 0, ())
    assert (row.mean_cosine, row.lowest_cosine) == (0.9495, 0.9)
    assert (row.mean_strength, row.lowest_strength, row.mean_alike) == (0.8, 0.7, 0.375)

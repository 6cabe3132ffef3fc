"""Test that the bar's figures name their set of prompts."""

from collections.abc import Iterable

import pytest

from benchmarks import zoo_quality
from zoo.evaluate.bar import PARTS, Row
from zoo.evaluate.estimates import Estimate


def test_rows_name_their_prompt_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(studio: float, parts: Iterable[str]) -> list[Row]:
        return [Row(part, "shape", Estimate(studio, studio, studio)) for part in parts]

    monkeypatch.setattr(zoo_quality, "measure", measured)
    studios = {zoo_quality.FIRST_SET: 1.0, zoo_quality.SECOND_SET: 2.0}

    rows = zoo_quality.rows_of(studios, ["dual-encoder", "heavy", "lora-neon"])  # type: ignore[arg-type]

    assert [(row.part, row.name, row.figure and row.figure.value) for row in rows] == [
        ("dual-encoder", "shape", 1.0),
        ("heavy", "shape, first prompts", 1.0),
        ("heavy", "shape, second prompts", 2.0),
        ("lora-neon", "shape, first prompts", 1.0),
    ]
    assert {*zoo_quality.WITHOUT_SETS, *zoo_quality.ON_BOTH_SETS} <= PARTS.keys()

"""The file of what was measured of ControlNets' residuals, and what is wrong with one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.adapters import PipeliningBound
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PentimentoError
from pentimento.files.pipelining_bounds import MeasuredBound, read_pipelining_bounds, write_pipelining_bounds

EDGES = MeasuredBound("edges", "sha256:edges", "sha256:heavy", 50, 4)


def written(folder: Path, *bounds: MeasuredBound) -> Path:
    path = folder / "bounds.json"
    write_pipelining_bounds(path, bounds)
    return path


def test_bounds_are_read_by_the_controlnets_digest_the_fewest_steps_first(tmp_path: Path) -> None:
    path = written(tmp_path, EDGES, replace(EDGES, step_count=20, first_step=0), replace(EDGES, controlnet_digest="b"))

    assert read_pipelining_bounds(path) == {
        "sha256:edges": (PipeliningBound(20, 0), PipeliningBound(50, 4)),
        "b": (PipeliningBound(50, 4),),
    }
    assert read_pipelining_bounds(None) == {}


@pytest.mark.parametrize(("other", "wanted"), [(9, 9), (2, 4), (0, 0)])
def test_of_several_models_the_one_that_allows_least_counts(tmp_path: Path, other: int, wanted: int) -> None:
    elsewhere = replace(EDGES, model_digest="sha256:other", first_step=other)

    for bounds in ((EDGES, elsewhere), (elsewhere, EDGES), (elsewhere, EDGES, EDGES)):
        assert read_pipelining_bounds(written(tmp_path, *bounds)) == {"sha256:edges": (PipeliningBound(50, wanted),)}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", FailedPrecondition, "must be JSON"),
        ("[]", FailedPrecondition, "of format 1"),
        ('{"format": 2, "bounds": []}', FailedPrecondition, "of format 1"),
        ('{"format": 1}', InvalidArgument, "bounds"),
        (json.dumps({"format": 1, "bounds": [{"controlnet": "edges"}]}), InvalidArgument, "controlnet_digest"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, error: type[PentimentoError], message: str) -> None:
    path = tmp_path / "bounds.json"
    path.write_text(text)

    with pytest.raises(error, match=message):
        read_pipelining_bounds(path)


def test_a_bound_behind_the_last_step_is_refused_and_a_missing_file_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="first_step: must be below step_count, 50, got 50"):
        read_pipelining_bounds(written(tmp_path, replace(EDGES, first_step=50)))
    with pytest.raises(NotFound, match="nothing"):
        read_pipelining_bounds(tmp_path / "nothing")

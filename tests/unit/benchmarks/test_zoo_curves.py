"""Test pairs of captions, the order of resumed images, and results assembled from parts."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import zoo_phenomena
from benchmarks.parts import PartResult, merge_parts
from benchmarks.report import Figure, Options, at_least, publish
from benchmarks.zoo_curves import resuming
from benchmarks.zoo_curves.caption_pairs import KINDS, caption_pairs, changed
from benchmarks.zoo_curves.resuming import FIFTHS, breaks
from zoo.drawing.captions import attributes
from zoo.drawing.scenes import UNREADABLE, scene_at


@pytest.mark.parametrize("count", [1, 3])
def test_changed_scene_has_requested_changes(count: int) -> None:
    for index in range(20):
        scene, rng = scene_at(2, index, held_out=True)
        said = frozenset(attributes(scene))

        found = changed(scene, said, count, rng)

        before, after = attributes(scene), attributes(found)
        assert sum(before[name] != after[name] for name in before) == count
        assert all((thing.colour, found.background) not in UNREADABLE for thing in found.things)


def test_caption_pairs_have_each_kind_and_shared_seed() -> None:
    pairs = caption_pairs(5)

    captions, donors, seeds = pairs.flat()

    assert len(captions) == len(donors) == len(seeds) == 5 * len(KINDS)
    assert captions[: len(KINDS)] == [pairs.captions[0]] * len(KINDS)
    assert seeds == [seed for seed in range(5) for _ in KINDS]
    assert pairs.donors == caption_pairs(5).donors


def grid_of(by_fifth: list[float], seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0.0, 0.05, (60, FIFTHS))
    return noise + np.array(by_fifth)


@pytest.fixture
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "RESAMPLES", 500)


@pytest.mark.usefixtures("few_resamples")
def test_breaks_ignores_order_within_noise() -> None:
    fifths = np.tile(np.arange(FIFTHS), (60, 1))
    by_step = {5: grid_of([0.7, 0.7, 0.7, 0.7, 0.7], 1), 10: grid_of([0.4, 0.5, 0.6, 0.7, 0.7], 2)}

    assert breaks(by_step, fifths, range(FIFTHS)) == []


@pytest.mark.usefixtures("few_resamples")
def test_breaks_finds_fall_with_similarity_and_rise_with_step() -> None:
    fifths = np.tile(np.arange(FIFTHS), (60, 1))
    by_step = {5: grid_of([0.5, 0.5, 0.5, 0.5, 0.5], 1), 10: grid_of([0.4, 0.5, 0.7, 0.5, 0.5], 2)}

    assert breaks(by_step, fifths, range(FIFTHS)) == ["at 10: fifth 2 to 3", "fifth 2: 5 to 10"]


def test_merge_parts_keeps_replaces_and_misses_in_order(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    order = ["first", "second", "third"]
    earlier = {name: PartResult([Figure(f"{name}: figure", 1.0, at_least(0.5), [1.0], None)]) for name in order[:2]}
    figures, notes = merge_parts(None, order, earlier)
    publish(Options("example", False, out), figures, notes={"parts": notes})

    again = {"second": PartResult([Figure("second: figure", 2.0, at_least(0.5), [2.0], None)], {"prompts": 3})}
    figures, notes = merge_parts(out, order, again)

    assert [(figure.name, figure.value) for figure in figures] == [
        ("first: figure", 1.0),
        ("second: figure", 2.0),
        ("third: missing", None),
    ]
    assert notes["second"]["prompts"] == 3
    assert notes["third"] == {"missing": "not measured yet"}


def test_missing_part_names_reason() -> None:
    figures, notes = merge_parts(None, ["first"], {"first": PartResult(missing="weights: not there")})

    assert [(figure.name, figure.ok) for figure in figures] == [("first: missing", False)]
    assert notes["first"]["missing"] == "weights: not there"


def test_unmeasurable_part_keeps_earlier_figures(tmp_path: Path) -> None:
    out, order = tmp_path / "result.json", ["first", "second"]
    measured = {"first": PartResult([Figure("first: figure", 1.0, at_least(0.5), [1.0], None)], {"prompts": 3})}
    figures, notes = merge_parts(None, order, measured)
    publish(Options("example", False, out), figures, notes={"parts": notes})

    lacking = {name: PartResult(missing="no judge in work") for name in order}
    figures, notes = merge_parts(out, order, lacking)

    assert [(figure.name, figure.value) for figure in figures] == [("first: figure", 1.0), ("second: missing", None)]
    assert (notes["first"]["prompts"], notes["first"]["not_measured_again"]["missing"]) == (3, "no judge in work")
    assert notes["second"]["missing"] == "no judge in work"


def test_run_with_unmeasured_part_returns_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, parts = tmp_path / "result.json", list(zoo_phenomena.PARTS)
    reached = {name: PartResult([Figure(f"{name}: figure", 1.0, at_least(0.5), [1.0], None)]) for name in parts}
    figures, notes = merge_parts(None, parts, reached)
    assert publish(Options("zoo_phenomena", False, out), figures, notes={"parts": notes}) == 0
    monkeypatch.setattr(zoo_phenomena, "measure", lambda setting, part: PartResult(missing="no judge in work"))
    monkeypatch.setattr("sys.argv", ["zoo_phenomena", "--only", parts[0], "--out", str(out)])

    code = zoo_phenomena.main()

    assert code == 1

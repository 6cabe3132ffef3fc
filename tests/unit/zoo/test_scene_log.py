"""Logs of scenes that come back as real users' prompts do, under the dual encoder that is in the repository."""

from pathlib import Path

import numpy as np
import pytest

from lab.workloads import load_workload
from pentimento.domain.errors import InvalidArgument
from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.scenes import PLACES, SIZES, UNREADABLE, Scene, draw
from zoo.registry import WEIGHTS
from zoo.scene_edits import CHANGES, changed, fresh, reworded
from zoo.scene_log import (
    BANDS,
    DIFFUSIONDB_SHARES,
    REPEATS,
    SHARES_OF_AGES,
    THRESHOLDS,
    Embed,
    SceneLog,
    clip_embedder,
    denser_bands,
    nearest,
    reuse,
    scene_workload,
    write_scene_log,
)

COUNT = 120


@pytest.fixture(scope="module")
def embed() -> Embed:
    return clip_embedder(WEIGHTS / "tiny-clip")


@pytest.fixture(scope="module")
def log(embed: Embed) -> SceneLog:
    return write_scene_log(COUNT, embed, np.random.default_rng(5))


def test_prompts_repeat_with_frequency_and_similarity_of_diffusiondb(log: SceneLog) -> None:
    similarity, _ = reuse(log.embeddings)

    for threshold, share in zip(THRESHOLDS, DIFFUSIONDB_SHARES, strict=True):
        assert float((similarity > threshold).mean()) == pytest.approx(share, abs=0.03)


def test_prompts_that_come_back_are_mostly_young(log: SceneLog) -> None:
    similarity, age = reuse(log.embeddings)
    young = age[similarity > THRESHOLDS[0]]

    # DiffusionDB: 23 % within 3 and 52 % within 10 requests; a log as short as this knows no age above its length.
    assert 0.15 < float((young <= 3).mean()) < 0.5
    assert 0.4 < float((young <= 10).mean()) < 0.8


def test_embeddings_equal_embedded_prompts(log: SceneLog, embed: Embed) -> None:
    np.testing.assert_allclose(log.embeddings[:40], embed(log.prompts[:40]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(log.embeddings, axis=1), 1.0, atol=1e-5)


def test_requested_attributes_match_text_of_prompt(log: SceneLog) -> None:
    backgrounds = ATTRIBUTES["background"]
    column = list(ATTRIBUTES).index("background")
    told = [(text, asked[column]) for text, asked in zip(log.prompts, log.asked, strict=True)]

    meadows = {"meadow" in text or "green grass" in text for text, said in told if said == backgrounds.index("meadow")}
    silent = [text for text, said in told if said == UNSAID]

    assert meadows == {True}
    assert silent and not any("meadow" in text or "brick" in text for text in silent)


def test_denser_log_has_requested_share_of_near_prompts(embed: Embed) -> None:
    dense = write_scene_log(COUNT, embed, np.random.default_rng(5), denser_bands(0.8, 0.9))

    similarity, _ = reuse(dense.embeddings)

    assert float((similarity > 0.9).mean()) == pytest.approx(0.8, abs=0.05)
    assert sum(band.share for band in denser_bands(0.8, 0.9)) == pytest.approx(1.0)


def test_scene_log_refuses_shares_and_counts(embed: Embed) -> None:
    for share, above in ((-0.1, 0.9), (1.1, 0.9), (0.5, 2.0), (0.5, -1.0)):
        with pytest.raises(InvalidArgument, match="share"):
            denser_bands(share, above)
    with pytest.raises(InvalidArgument, match="count: must be at least 1"):
        write_scene_log(0, embed, np.random.default_rng(0))


def test_the_same_seed_writes_the_same_log_and_another_another(embed: Embed) -> None:
    first, again, other = (write_scene_log(12, embed, np.random.default_rng(seed)).prompts for seed in (1, 1, 2))

    assert first == again != other


def test_workload_follows_log_and_is_labelled_composite(log: SceneLog) -> None:
    workload = scene_workload(log, 2.0, np.random.default_rng(0), "tiny-clip")

    assert [arrival.prompt for arrival in workload.arrivals] == list(log.prompts)
    assert workload.provenance["composite"] is True and workload.mean_rate == pytest.approx(2.0, rel=0.3)


def test_the_command_writes_a_workload_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.scene_log import main

    monkeypatch.setattr("sys.argv", ["scene_log", "--out", str(tmp_path / "s.jsonl.gz"), "--count", "6"])
    main()

    found = load_workload(tmp_path / "s.jsonl.gz")
    assert len(found.arrivals) == 6 and found.embeddings is not None and len(found.embeddings) == 6


def test_the_nearest_of_equals_is_the_newest() -> None:
    previous = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], np.float32)

    assert nearest(previous, np.array([1, 0], np.float32)) == (1.0, 2)


def test_the_bands_are_diffusiondbs_shares_without_gap_or_overlap() -> None:
    assert sum(band.share for band in BANDS) == pytest.approx(1.0, abs=0.011)
    for threshold, share in zip(THRESHOLDS, DIFFUSIONDB_SHARES, strict=True):
        assert sum(band.share for band in BANDS if band.low >= threshold) == pytest.approx(share, abs=0.011)
    assert [band.high for band in BANDS[:-1]] == [band.low for band in BANDS[1:]]


def test_ages_are_drawn_by_their_quantiles() -> None:
    rng = np.random.default_rng(0)

    drawn = np.array([REPEATS.draw_age(rng, 10_000) for _ in range(4000)])

    for share, age in zip(SHARES_OF_AGES[4:8], REPEATS.ages[4:8], strict=True):
        assert float((drawn <= age).mean()) == pytest.approx(share, abs=0.06)


def test_no_age_is_beyond_the_beginning_of_the_log() -> None:
    rng = np.random.default_rng(0)

    for band in (band for band in BANDS if band.ages):
        assert {band.draw_age(rng, oldest) <= oldest for oldest in (1, 2, 5, 50) for _ in range(50)} == {True}
        assert min(band.draw_age(rng, 50) for _ in range(200)) >= 1


def check(scene: Scene) -> None:
    """Assert the rules of training scenes."""
    colours = [thing.colour for thing in scene.things]
    assert len(set(colours)) == len(colours)
    assert all((colour, scene.background) not in UNREADABLE for colour in colours)
    assert (scene.place is None) == (len(scene.things) > 1) and (scene.relation is None) == (len(scene.things) == 1)
    assert scene.place is None or scene.place in PLACES
    assert all(thing.size in SIZES and abs(thing.x) < 0.7 and abs(thing.y) < 0.7 for thing in scene.things)
    assert len(scene.things) < 3 or {thing.size for thing in scene.things} == {"small"}
    assert len(scene.things) == 1 or "large" not in {thing.size for thing in scene.things}


def test_every_edit_is_a_scene_that_the_zoo_can_draw() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        said = fresh(rng)

        for _ in range(30):
            said = changed(said, rng, int(rng.integers(1, len(CHANGES) + 1)), bool(rng.integers(2)))
            check(said.scene)
        assert draw(said.scene, size=16)[0].shape == (16, 16, 3)


@pytest.mark.parametrize("kind", [kind for kind in CHANGES])
def test_every_kind_of_change_changes_one_thing(kind: str) -> None:
    rng = np.random.default_rng(3)
    one = next(said for said in iter(lambda: fresh(rng), None) if len(said.scene.things) == 1)

    after = CHANGES[kind](one.scene, rng)

    differing = {
        name
        for name, before, now in (
            ("background", one.scene.background, after.background),
            ("style", one.scene.style, after.style),
            ("standing", one.scene.place, after.place),
            ("shape", one.scene.things[0].shape, after.things[0].shape),
            ("colour", one.scene.things[0].colour, after.things[0].colour),
            ("size", one.scene.things[0].size, after.things[0].size),
        )
        if before != now
    }
    assert differing == {kind}


def test_rewording_keeps_the_scene() -> None:
    rng = np.random.default_rng(1)
    said = fresh(rng)

    others = [reworded(said, rng) for _ in range(8)]

    assert {other.scene for other in others} == {said.scene}
    assert len({other.text for other in others}) > 1 and said.text == said.text

"""Scenes, their drawings and captions, and the tokens of captions."""

from pathlib import Path

import numpy as np
import pytest
from transformers import CLIPTokenizer

from zoo.drawing.captions import ATTRIBUTES, UNSAID, canonical_caption, labels, natural_caption
from zoo.drawing.dataset import tokenise
from zoo.drawing.scenes import (
    DISTANCES,
    IMAGE_SIZE,
    SHAPES,
    SIZES,
    TREATMENTS,
    Scene,
    Thing,
    draw,
    held_out_pair,
    scene_at,
)
from zoo.drawing.tokenizer import MAX_TOKENS, build_tokenizer


def test_scene_at_repeats_by_seed_and_differs_by_index() -> None:
    first, again = scene_at(7, 3)[0], scene_at(7, 3)[0]

    assert first == again
    assert np.array_equal(draw(first)[0], draw(again)[0])
    assert len({scene_at(7, index)[0] for index in range(200)}) == 200


def test_drawing_is_floats_between_zero_and_one_with_coverage() -> None:
    scene, _ = scene_at(0, 0)

    picture, coverage = draw(scene)

    assert picture.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    assert coverage.shape == (IMAGE_SIZE, IMAGE_SIZE)
    assert picture.dtype == coverage.dtype == np.float32
    assert 0.0 <= picture.min() <= picture.max() <= 1.0


def test_draw_every_shape_covers_part_around_its_middle() -> None:
    middle, radius_px = (IMAGE_SIZE - 1) / 2.0, SIZES["large"] * IMAGE_SIZE / 2.0
    for shape in SHAPES:
        scene = Scene((Thing(shape, "red", "large", 0.0, 0.0),), "white", "flat", "centre", None, 0)

        _, coverage = draw(scene)

        rows, columns = np.nonzero(coverage > 0.5)
        assert 0.08 < coverage.mean() < 0.35, shape
        assert abs(columns - middle).max() < 1.2 * radius_px, shape
        assert abs(rows - middle).max() < 1.2 * radius_px, shape


def test_all_shapes_differ() -> None:
    masks = {
        shape: draw(Scene((Thing(shape, "red", "small", 0.0, 0.0),), "white", "flat", "centre", None, 0))[1]
        for shape in DISTANCES
    }

    differences = [np.abs(masks[a] - masks[b]).sum() for a in masks for b in masks if a < b]

    assert min(differences) > 40.0


def test_things_stand_in_the_order_that_their_relation_says() -> None:
    related = [scene for index in range(300) if (scene := scene_at(5, index)[0]).relation is not None]

    assert {len(scene.things) for scene in related} == {2, 3}
    for scene in related:
        across = scene.relation in ("left of", "in a row")
        along = [thing.x if across else -thing.y for thing in scene.things]
        assert along == sorted(along)


def test_training_and_evaluation_share_no_held_out_combination() -> None:
    trained = [scene_at(1, index, held_out=False)[0] for index in range(200)]
    examined = [scene_at(2, index, held_out=True)[0] for index in range(50)]

    assert not any(held_out_pair(thing.shape, thing.colour) for scene in trained for thing in scene.things)
    assert all(any(held_out_pair(thing.shape, thing.colour) for thing in scene.things) for scene in examined)


def test_draw_treatment_changes_image_and_not_places() -> None:
    scene, _ = scene_at(0, 1)
    plain, where = draw(scene)

    for treatment in TREATMENTS:
        treated, still_there = draw(scene, treatment=treatment)

        assert np.abs(plain - treated).mean() > 0.02, treatment
        assert np.array_equal(where, still_there), treatment


def test_natural_captions_repeat_by_seed_and_differ_by_scene() -> None:
    captions = [natural_caption(*scene_at(9, 4)) for _ in range(2)]

    assert captions[0] == captions[1]
    assert len({natural_caption(*scene_at(3, index)).text for index in range(1000)}) > 950


def test_canonical_captions_say_every_attribute() -> None:
    thing = Thing("star", "blue", "small", 0.0, 0.0)

    caption = canonical_caption(Scene((thing,), "white", "striped", "top left", None, 0))

    assert caption == "a small striped blue star in the top left on a white background"


def test_labels_omit_attributes_that_caption_omits() -> None:
    scene = Scene((Thing("ring", "pink", "large", 0.0, 0.0),), "sky", "shaded", "top", None, 0)

    found = dict(zip(ATTRIBUTES, labels(scene, frozenset({"shape", "colour"})), strict=True))

    assert found["shape"] == SHAPES.index("ring")
    assert found["background"] == found["second_shape"] == UNSAID


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CLIPTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder, count=1500)
    return CLIPTokenizer.from_pretrained(folder)


def test_captions_fit_into_the_tokens_of_the_text_tower(tokenizer: CLIPTokenizer) -> None:
    captions = [natural_caption(*scene_at(21, index)).text for index in range(500)]

    lengths = [len(tokenizer(caption)["input_ids"]) for caption in captions]

    assert max(lengths) <= MAX_TOKENS


def test_tokenizer_knows_every_word_and_byte(tokenizer: CLIPTokenizer) -> None:
    words = tokenizer("zürich quokka ☃ owls")["input_ids"]
    symbols = tokenizer("ß 猫 \U0001f98a €")["input_ids"]

    assert tokenizer.decode(words, skip_special_tokens=True) == "zürich quokka ☃ owls"
    assert tokenizer.eos_token_id not in symbols[:-1]


def test_a_caption_that_is_too_long_is_cut_and_still_ends(tokenizer: CLIPTokenizer) -> None:
    tokens = tokenise(tokenizer, ["word " * 500])

    assert tokens.shape == (1, MAX_TOKENS)
    assert int(tokens[0, -1]) == tokenizer.eos_token_id


def test_the_same_captions_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build_tokenizer(tmp_path / name, count=200, merges=50)

    files = ("vocab.json", "merges.txt", "tokenizer.json")
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)

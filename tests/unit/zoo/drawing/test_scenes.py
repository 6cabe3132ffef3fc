import numpy as np
import pytest

from zoo.drawing.captions import ATTRIBUTES, UNSAID, canonical_caption, labels, natural_caption
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


def test_the_same_seed_and_index_give_the_same_scene_and_picture() -> None:
    first, _ = scene_at(7, 3)

    again, _ = scene_at(7, 3)

    assert first == again
    assert np.array_equal(draw(first)[0], draw(again)[0])


def test_neighbouring_indices_give_different_scenes() -> None:
    scenes = {scene_at(7, index)[0] for index in range(200)}

    assert len(scenes) == 200


def test_a_picture_is_floats_between_zero_and_one_with_its_coverage() -> None:
    scene, _ = scene_at(0, 0)

    picture, coverage = draw(scene)

    assert picture.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    assert coverage.shape == (IMAGE_SIZE, IMAGE_SIZE)
    assert picture.dtype == coverage.dtype == np.float32
    assert 0.0 <= picture.min() <= picture.max() <= 1.0


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_covers_part_of_the_picture_around_its_middle(shape: str) -> None:
    scene = Scene((Thing(shape, "red", "large", 0.0, 0.0),), "white", "flat", "centre", None, 0)

    _, coverage = draw(scene)

    rows, columns = np.nonzero(coverage > 0.5)
    middle, radius_px = (IMAGE_SIZE - 1) / 2.0, SIZES["large"] * IMAGE_SIZE / 2.0
    assert 0.08 < coverage.mean() < 0.35
    assert abs(columns - middle).max() < 1.2 * radius_px
    assert abs(rows - middle).max() < 1.2 * radius_px


def test_no_two_shapes_look_alike() -> None:
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


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_a_treatment_changes_the_picture_and_not_where_things_are(treatment: str) -> None:
    scene, _ = scene_at(0, 1)

    plain, where = draw(scene)
    treated, still_there = draw(scene, treatment=treatment)

    assert np.abs(plain - treated).mean() > 0.02
    assert np.array_equal(where, still_there)


def test_a_caption_repeats_for_the_same_seed() -> None:
    captions = [natural_caption(*scene_at(9, 4)) for _ in range(2)]

    assert captions[0] == captions[1]


def test_canonical_captions_say_every_attribute() -> None:
    thing = Thing("star", "blue", "small", 0.0, 0.0)

    caption = canonical_caption(Scene((thing,), "white", "striped", "top left", None, 0))

    assert caption == "a small striped blue star in the top left on a white background"


def test_natural_captions_of_many_scenes_are_nearly_all_different() -> None:
    captions = {natural_caption(*scene_at(3, index)).text for index in range(1000)}

    assert len(captions) > 950


def test_labels_of_a_caption_leave_out_what_it_does_not_say() -> None:
    scene = Scene((Thing("ring", "pink", "large", 0.0, 0.0),), "sky", "shaded", "top", None, 0)

    found = dict(zip(ATTRIBUTES, labels(scene, frozenset({"shape", "colour"})), strict=True))

    assert found["shape"] == SHAPES.index("ring")
    assert found["background"] == found["second_shape"] == UNSAID

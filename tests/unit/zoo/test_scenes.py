import numpy as np
import pytest

from zoo.captions import ATTRIBUTES, UNSAID, canonical_caption, labels, natural_caption
from zoo.scenes import DISTANCES, IMAGE_SIZE, SHAPES, Scene, Thing, draw, scene_at


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
    scene = Scene((Thing(shape, "red", "large", 0.0, 0.0),), "white", "flat", "centre", None)

    _, coverage = draw(scene)

    rows, columns = np.nonzero(coverage > 0.5)
    assert 0.08 < coverage.mean() < 0.35
    assert abs(columns.mean() - 15.5) < 0.6
    assert abs(rows.mean() - 15.5) < 2.0


def test_no_two_shapes_look_alike() -> None:
    masks = {
        shape: draw(Scene((Thing(shape, "red", "small", 0.0, 0.0),), "white", "flat", "centre", None))[1]
        for shape in DISTANCES
    }

    differences = [np.abs(masks[a] - masks[b]).sum() for a in masks for b in masks if a < b]

    assert min(differences) > 8.0


def test_the_first_thing_stands_left_of_or_above_the_second() -> None:
    pairs = [scene for index in range(300) if (scene := scene_at(5, index)[0]).relation is not None]

    for scene in pairs:
        first, second = scene.things
        assert first.x < second.x if scene.relation == "left of" else first.y > second.y


def test_a_caption_repeats_for_the_same_seed() -> None:
    captions = [natural_caption(*scene_at(9, 4)) for _ in range(2)]

    assert captions[0] == captions[1]


def test_canonical_captions_say_every_attribute() -> None:
    thing = Thing("star", "blue", "small", 0.0, 0.0)

    caption = canonical_caption(Scene((thing,), "white", "striped", "top left", None))

    assert caption == "a small striped blue star in the top left on a white background"


def test_natural_captions_of_many_scenes_are_nearly_all_different() -> None:
    captions = {natural_caption(*scene_at(3, index)).text for index in range(1000)}

    assert len(captions) > 950


def test_labels_of_a_caption_leave_out_what_it_does_not_say() -> None:
    scene = Scene((Thing("ring", "pink", "large", 0.0, 0.0),), "sky", "shaded", "top", None)

    found = dict(zip(ATTRIBUTES, labels(scene, frozenset({"shape", "colour"})), strict=True))

    assert found["shape"] == SHAPES.index("ring")
    assert found["background"] == found["second_shape"] == UNSAID

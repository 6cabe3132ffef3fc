"""Conditions contain the places of things alone, and agreement with them is measured correctly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.drawing.conditions import (
    EDGE_THRESHOLD,
    as_rgb_condition,
    ball_table,
    edge_f1,
    edges,
    layout,
    layout_of_balls,
    place_iou,
)
from zoo.drawing.scenes import IMAGE_SIZE, SHAPES, SIZES, Scene, Thing, draw, scene_at

SEEDS = st.integers(0, 2**32 - 1)


def random_image(seed: int, size: int = 12) -> Tensor:
    """Return an image of quarters, which are exact in floating point, for comparisons by equality."""
    return torch.randint(5, (1, 3, size, size), generator=torch.Generator().manual_seed(seed)) / 4.0


def random_map(seed: int, share: float, size: int = 8) -> Tensor:
    return (torch.rand((1, 1, size, size), generator=torch.Generator().manual_seed(seed)) < share).float()


def single(shape: str = "circle", size: str = "large", x: float = 0.0, y: float = 0.0, colour: str = "blue") -> Scene:
    return Scene((Thing(shape, colour, size, x, y),), "white", "flat", "centre", None, 0)


def image_of(scene: Scene) -> Tensor:
    return torch.from_numpy(draw(scene)[0]).permute(2, 0, 1)[None]


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_edges_are_the_same_for_a_negative_and_for_channels_in_another_order(seed: int) -> None:
    picture = random_image(seed)

    found = edges(picture)

    assert found.shape == (1, 1, 12, 12)
    assert set(found.unique().tolist()) <= {0.0, 1.0}
    assert torch.equal(found, edges(1.0 - picture))
    assert torch.equal(found, edges(picture.flip(1)))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2), st.floats(2.5 * EDGE_THRESHOLD, 1.0), st.booleans())
def test_a_step_in_any_channel_is_a_line_of_one_pixel(at: int, channel: int, height: float, upright: bool) -> None:
    picture = torch.zeros(1, 3, 12, 12)
    picture[:, channel, :, at:] = height
    picture = picture if upright else picture.transpose(2, 3)

    found = edges(picture)[0, 0]

    lines = found if upright else found.T
    assert lines.sum(dim=1).tolist() == [1.0] * 12
    assert lines.sum(dim=0).nonzero().tolist() in ([[at - 1]], [[at]])


def test_edges_of_a_disc_are_its_rim_and_of_a_ramp_none() -> None:
    axis = (torch.arange(IMAGE_SIZE) + 0.5) / IMAGE_SIZE * 2.0 - 1.0
    distance_px = torch.hypot(axis[:, None], axis) * IMAGE_SIZE / 2.0

    found = edges(image_of(single()))[0, 0] > 0

    rim = 0.95 * SIZES["large"] * IMAGE_SIZE / 2.0
    assert (distance_px[found] - rim).abs().max() <= 1.0
    assert found.sum() >= 2.0 * np.pi * rim * 0.85
    assert edges(torch.linspace(0.0, 1.0, 64).expand(1, 3, 64, 64)).sum() == 0


def brute_force_f1(found: Tensor, wanted: Tensor, tolerance: int) -> float:
    ones, twos = found[0, 0].nonzero().tolist(), wanted[0, 0].nonzero().tolist()
    if not ones and not twos:
        return 1.0

    def near(point: list[int], others: list[list[int]]) -> bool:
        return any(max(abs(point[0] - y), abs(point[1] - x)) <= tolerance for y, x in others)

    precision = sum(near(p, twos) for p in ones) / max(1, len(ones))
    recall = sum(near(p, ones) for p in twos) / max(1, len(twos))
    return 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 0.05, 0.3]), st.sampled_from([0.0, 0.05, 0.3]), st.integers(0, 2))
def test_edge_f1_is_that_of_counting_pixel_by_pixel(seed: int, share: float, other: float, tolerance: int) -> None:
    found, wanted = random_map(seed, share), random_map(seed + 1, other)

    assert float(edge_f1(found, wanted, tolerance)) == pytest.approx(brute_force_f1(found, wanted, tolerance))


def test_edges_outside_the_chosen_region_count_neither_for_nor_against() -> None:
    wanted, found = torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)
    wanted[..., 0, :], found[..., 0, :], found[..., 5, :] = 1.0, 1.0, 1.0
    upper = torch.zeros(1, 1, 8, 8)
    upper[..., :3, :] = 1.0

    assert float(edge_f1(found, wanted)) == pytest.approx(2.0 / 3.0)
    assert float(edge_f1(found, wanted, within=upper)) == 1.0


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(list(SIZES)), st.floats(-0.5, 0.5), st.floats(-0.5, 0.5))
def test_a_layout_peaks_in_the_middle_of_a_thing_the_higher_the_larger(size: str, x: float, y: float) -> None:
    found = layout([single(size=size, x=x, y=y)])[0, 0]

    row, column = divmod(int(found.argmax()), IMAGE_SIZE)
    assert abs((column + 0.5) / IMAGE_SIZE * 2.0 - 1.0 - x) <= 2.0 / IMAGE_SIZE
    assert abs(1.0 - (row + 0.5) / IMAGE_SIZE * 2.0 - y) <= 2.0 / IMAGE_SIZE
    assert float(found.max()) == pytest.approx(SIZES[size] / SIZES["large"], abs=0.01)


def test_a_layout_does_not_tell_shape_colour_or_background() -> None:
    things = [single(shape, colour=colour) for shape, colour in zip(SHAPES, ("red", "blue") * 5, strict=True)]

    found = layout([*things, replace(things[0], background="bricks", style="dotted")])

    assert all(torch.equal(found[0], other) for other in found)


def test_a_layout_lies_where_the_things_are_drawn() -> None:
    scenes = [scene_at(1, index)[0] for index in range(40)]
    drawn = torch.stack([torch.from_numpy(draw(scene)[1]) for scene in scenes])

    found = layout(scenes)

    assert torch.equal(found, layout_of_balls(ball_table(scenes)))
    inside = (found[:, 0] > 0).float()
    assert float((drawn * inside).sum() / drawn.sum()) > 0.95
    assert float(place_iou(inside, drawn).mean()) > 0.5


def test_place_iou_is_intersection_over_union() -> None:
    found = torch.tensor([[[1.0, 0.9], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[0.2, 0.0], [0.0, 0.0]]])
    wanted = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])

    assert place_iou(found, wanted).tolist() == pytest.approx([1.0 / 3.0, 0.0, 1.0])


def test_a_condition_is_given_in_three_equal_channels() -> None:
    found = as_rgb_condition(random_map(0, 0.5))

    assert found.shape == (1, 3, 8, 8)
    assert torch.equal(found[:, 0], found[:, 2])

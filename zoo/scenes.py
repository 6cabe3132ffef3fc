"""Scenes drawn by signed-distance functions: what the tiny models learn to paint.

A scene is one object at one of nine places, or two objects in a relation, in one style on one background.
Everything is a function of a seed, so that a data set is a number and not a download.
Coordinates: x to the right and y upwards, both from -1 to 1 over the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

IMAGE_SIZE = 32
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond")
COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.90, 0.10, 0.12),
    "orange": (1.00, 0.55, 0.05),
    "yellow": (0.98, 0.88, 0.10),
    "green": (0.10, 0.65, 0.18),
    "cyan": (0.10, 0.80, 0.85),
    "blue": (0.12, 0.25, 0.90),
    "purple": (0.55, 0.15, 0.75),
    "pink": (1.00, 0.45, 0.75),
    "brown": (0.50, 0.30, 0.12),
    "black": (0.06, 0.06, 0.06),
}
SIZES: dict[str, float] = {"small": 0.31, "medium": 0.41, "large": 0.54}
PLACES: dict[str, tuple[int, int]] = {
    "top left": (-1, 1),
    "top": (0, 1),
    "top right": (1, 1),
    "left": (-1, 0),
    "centre": (0, 0),
    "right": (1, 0),
    "bottom left": (-1, -1),
    "bottom": (0, -1),
    "bottom right": (1, -1),
}
RELATIONS = ("left of", "above")
BACKGROUNDS = ("white", "black", "grey", "sky", "sunset", "meadow", "stripes", "checkerboard")
STYLES = ("flat", "outlined", "striped", "shaded")
UNREADABLE = {("black", "black"), ("orange", "sunset"), ("green", "meadow"), ("cyan", "sky")}

PLACE_OFFSET = 0.46
JITTER = 0.04
TWO_OBJECTS = 0.35
STRIPE_PERIOD = 0.34
BORDER_PX = 1.6


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class Scene:
    """One thing at `place`, or the first of two things standing in `relation` to the second."""

    things: tuple[Thing, ...]
    background: str
    style: str
    place: str | None
    relation: str | None


def _choose(rng: np.random.Generator, names: tuple[str, ...] | dict[str, object]) -> str:
    options = tuple(names)
    return options[int(rng.integers(len(options)))]


def _colour_for(rng: np.random.Generator, background: str, taken: str | None) -> str:
    while True:
        colour = _choose(rng, tuple(COLOURS))
        if colour != taken and (colour, background) not in UNREADABLE:
            return colour


def _jittered(rng: np.random.Generator, x: float, y: float) -> tuple[float, float]:
    dx, dy = rng.uniform(-JITTER, JITTER, 2)
    return float(x + dx), float(y + dy)


def sample_scene(rng: np.random.Generator) -> Scene:
    background, style = _choose(rng, BACKGROUNDS), _choose(rng, STYLES)
    if rng.random() < TWO_OBJECTS:
        return _two_things(rng, background, style)
    place, size = _choose(rng, tuple(PLACES)), _choose(rng, tuple(SIZES))
    across, up = PLACES[place]
    x, y = _jittered(rng, across * PLACE_OFFSET, up * PLACE_OFFSET)
    thing = Thing(_choose(rng, SHAPES), _colour_for(rng, background, None), size, x, y)
    return Scene((thing,), background, style, place, None)


def _two_things(rng: np.random.Generator, background: str, style: str) -> Scene:
    relation = _choose(rng, RELATIONS)
    ends = (
        ((-PLACE_OFFSET, 0.0), (PLACE_OFFSET, 0.0))
        if relation == "left of"
        else ((0.0, PLACE_OFFSET), (0.0, -PLACE_OFFSET))
    )
    things: list[Thing] = []
    for end in ends:
        x, y = _jittered(rng, *end)
        colour = _colour_for(rng, background, things[0].colour if things else None)
        things.append(Thing(_choose(rng, SHAPES), colour, _choose(rng, ("small", "medium")), x, y))
    return Scene(tuple(things), background, style, None, relation)


def scene_at(seed: int, index: int) -> tuple[Scene, np.random.Generator]:
    """The index-th scene of a seed, and the generator left to draw its caption from."""
    rng = np.random.default_rng((seed, index))
    return sample_scene(rng), rng


# Signed distances, in units of the radius: negative inside.


def _circle(x: Array, y: Array) -> Array:
    return np.hypot(x, y) - 0.95


def _square(x: Array, y: Array) -> Array:
    return np.maximum(np.abs(x), np.abs(y)) - 0.82


def _triangle(x: Array, y: Array) -> Array:
    return np.maximum(np.abs(x) * 0.866 + (y + 0.12) * 0.5, -(y + 0.12)) - 0.58


def _star(x: Array, y: Array) -> Array:
    cos36, sin36, radius, inner = 0.809016994, 0.587785252, 1.12, 0.42
    x = np.abs(x)
    for kx, ky in ((cos36, -sin36), (-cos36, -sin36)):
        fold = 2.0 * np.maximum(kx * x + ky * y, 0.0)
        x, y = x - fold * kx, y - fold * ky
    x, y = np.abs(x), y - radius
    bx, by = inner * sin36, inner * cos36 - 1.0
    along = np.clip((x * bx + y * by) / (bx * bx + by * by), 0.0, radius)
    return np.hypot(x - bx * along, y - by * along) * np.sign(y * bx - x * by)


def _heart(x: Array, y: Array) -> Array:
    scale = 0.58
    x, y = np.abs(x) * scale, y * scale + 0.56
    lobe = np.hypot(x - 0.25, y - 0.75) - np.sqrt(2.0) / 4.0
    diagonal = 0.5 * np.maximum(x + y, 0.0)
    point = np.minimum(x**2 + (y - 1.0) ** 2, (x - diagonal) ** 2 + (y - diagonal) ** 2)
    return np.where(x + y > 1.0, lobe, np.sqrt(point) * np.sign(x - y)) / scale


def _ring(x: Array, y: Array) -> Array:
    return np.abs(np.hypot(x, y) - 0.70) - 0.25


def _cross(x: Array, y: Array) -> Array:
    ax, ay = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(ax - 0.95, ay - 0.32), np.maximum(ay - 0.95, ax - 0.32))


def _diamond(x: Array, y: Array) -> Array:
    return (np.abs(x) * 1.25 + np.abs(y) - 1.05) / 1.6


DISTANCES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "cross": _cross,
    "diamond": _diamond,
}


def _grid(size: int) -> tuple[Array, Array]:
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2.0 - 1.0
    x, y = np.meshgrid(axis, -axis)
    return x.astype(np.float32), y.astype(np.float32)


def _blend(low: tuple[float, float, float], high: tuple[float, float, float], amount: Array) -> Array:
    amount = np.clip(amount, 0.0, 1.0)[..., None]
    return np.asarray(low, np.float32) * (1.0 - amount) + np.asarray(high, np.float32) * amount


def _paint_background(name: str, x: Array, y: Array) -> Array:
    plain = {"white": (0.97, 0.97, 0.97), "black": (0.05, 0.05, 0.07), "grey": (0.55, 0.55, 0.57)}
    if name in plain:
        return _blend(plain[name], plain[name], np.zeros_like(x))
    if name == "sky":
        return _blend((0.88, 0.95, 1.0), (0.35, 0.65, 0.98), (y + 1.0) / 2.0)
    if name == "sunset":
        return _blend((1.0, 0.62, 0.30), (0.30, 0.12, 0.42), (y + 1.0) / 2.0)
    if name == "meadow":
        return _blend((0.35, 0.62, 0.25), (0.78, 0.90, 0.98), (y + 0.1) * 16.0)
    if name == "stripes":
        return _blend((0.97, 0.93, 0.80), (0.80, 0.70, 0.55), (np.sin(x * np.pi * 4.0) * 3.0 + 1.0) / 2.0)
    checks = np.sin(x * np.pi * 2.0) * np.sin(y * np.pi * 2.0)
    return _blend((0.95, 0.95, 0.95), (0.68, 0.68, 0.72), (checks * 8.0 + 1.0) / 2.0)


def _paint_fill(
    style: str, colour: tuple[float, float, float], x: Array, y: Array, depth_px: Array, radius: float
) -> Array:
    """The inside of a thing; x and y are relative to its middle, depth_px is how far inside a pixel lies."""
    pale = tuple(0.35 * channel + 0.65 for channel in colour)
    dark = tuple(0.40 * channel for channel in colour)
    if style == "outlined":
        return _blend(colour, pale, depth_px - BORDER_PX + 0.5)  # type: ignore[arg-type]
    if style == "striped":
        wave = np.sin((x + y) * (2.0 * np.pi / (STRIPE_PERIOD * np.sqrt(2.0))))
        lighter = tuple(0.45 * channel + 0.55 for channel in colour)
        return _blend(colour, lighter, (wave * 2.5 + 1.0) / 2.0)  # type: ignore[arg-type]
    if style == "shaded":
        light = (x - y) / (2.0 * radius) + 0.5
        return np.where(
            (light < 0.5)[..., None],
            _blend(pale, colour, light * 2.0),
            _blend(colour, dark, light * 2.0 - 1.0),  # type: ignore[arg-type]
        )
    return _blend(colour, colour, np.zeros_like(x))


def draw(scene: Scene, size: int = IMAGE_SIZE) -> tuple[Array, Array]:
    """The picture (size, size, 3) in 0..1 and the coverage of its things (size, size) in 0..1."""
    x, y = _grid(size)
    picture = _paint_background(scene.background, x, y)
    covered = np.zeros_like(x)
    for thing in scene.things:
        radius = SIZES[thing.size]
        dx, dy = x - thing.x, y - thing.y
        distance_px = DISTANCES[thing.shape](dx / radius, dy / radius) * radius * size / 2.0
        coverage = np.clip(0.5 - distance_px, 0.0, 1.0)
        fill = _paint_fill(scene.style, COLOURS[thing.colour], dx, dy, -distance_px * IMAGE_SIZE / size, radius)
        picture = picture * (1.0 - coverage[..., None]) + fill * coverage[..., None]
        covered = np.maximum(covered, coverage)
    return np.clip(picture, 0.0, 1.0).astype(np.float32), covered.astype(np.float32)

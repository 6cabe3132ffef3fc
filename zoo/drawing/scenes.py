"""Draw scenes by signed-distance functions: the tiny models' training data.

A scene is one object at one of nine places, two in a relation, or three in a line, in one style on one background.
Everything is a function of a seed, so that a data set is a number and not a download. One pair of shape and colour in
ten is held out: training never sees it, evaluation sees nothing else. Coordinates: x to the right and y upwards, both
from -1 to 1 over the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

IMAGE_SIZE = 64
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring", "cross", "diamond", "moon", "arrow")
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
SIZES: dict[str, float] = {"small": 0.29, "medium": 0.41, "large": 0.56}
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
RELATIONS = ("left of", "above", "in a row", "in a column")
BACKGROUNDS = ("white", "black", "grey", "sky", "sunset", "meadow", "stripes", "checkerboard", "bricks", "night")
STYLES = ("flat", "outlined", "striped", "dotted", "shaded", "crosshatched")
TREATMENTS = ("neon", "blueprint", "mosaic")  # whole-image styles that no caption names, for adapters
UNREADABLE = {
    ("black", "black"),
    ("black", "night"),
    ("blue", "night"),
    ("orange", "sunset"),
    ("green", "meadow"),
    ("cyan", "sky"),
    ("red", "bricks"),
    ("brown", "bricks"),
}

PLACE_OFFSET = 0.44
LINE_OFFSET = 0.64
JITTER = 0.03
COUNTS = (0.5, 0.85)  # a draw below the first gives one object, below the second two, else three
STRIPE_PERIOD = 0.20
HATCH_PERIOD = 0.22
DOT_PERIOD = 0.19
BORDER_PX = 2.2


@dataclass(frozen=True)
class Thing:
    shape: str
    colour: str
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class Scene:
    """Hold one object at `place`, or two or three objects in `relation`; `detail` seeds stars, blades and bricks."""

    things: tuple[Thing, ...]
    background: str
    style: str
    place: str | None
    relation: str | None
    detail: int


def held_out_pair(shape: str, colour: str) -> bool:
    return (3 * SHAPES.index(shape) + tuple(COLOURS).index(colour)) % 10 == 0


def is_held_out(scene: Scene) -> bool:
    """Return whether one of its objects has a shape and colour that training never combined."""
    return any(held_out_pair(thing.shape, thing.colour) for thing in scene.things)


def _choose(rng: np.random.Generator, names: tuple[str, ...] | dict[str, object]) -> str:
    options = tuple(names)
    return options[int(rng.integers(len(options)))]


def _colour_for(rng: np.random.Generator, background: str, taken: list[Thing]) -> str:
    while True:
        colour = _choose(rng, tuple(COLOURS))
        if all(colour != thing.colour for thing in taken) and (colour, background) not in UNREADABLE:
            return colour


def _jittered(rng: np.random.Generator, x: float, y: float) -> tuple[float, float]:
    dx, dy = rng.uniform(-JITTER, JITTER, 2)
    return float(x + dx), float(y + dy)


def sample_scene(rng: np.random.Generator) -> Scene:
    background, style = _choose(rng, BACKGROUNDS), _choose(rng, STYLES)
    detail, count = int(rng.integers(2**31)), rng.random()
    if count >= COUNTS[0]:
        return _several_things(rng, background, style, detail, 2 if count < COUNTS[1] else 3)
    place, size = _choose(rng, tuple(PLACES)), _choose(rng, tuple(SIZES))
    across, up = PLACES[place]
    x, y = _jittered(rng, across * PLACE_OFFSET, up * PLACE_OFFSET)
    thing = Thing(_choose(rng, SHAPES), _colour_for(rng, background, []), size, x, y)
    return Scene((thing,), background, style, place, None, detail)


def _several_things(rng: np.random.Generator, background: str, style: str, detail: int, count: int) -> Scene:
    across = rng.random() < 0.5
    offset = PLACE_OFFSET if count == 2 else LINE_OFFSET
    relation = (("left of", "in a row") if across else ("above", "in a column"))[count - 2]
    sizes = ("small", "medium") if count == 2 else ("small",)
    things: list[Thing] = []
    for along in np.linspace(-offset, offset, count):
        x, y = _jittered(rng, *((float(along), 0.0) if across else (0.0, -float(along))))
        things.append(Thing(_choose(rng, SHAPES), _colour_for(rng, background, things), _choose(rng, sizes), x, y))
    return Scene(tuple(things), background, style, None, relation, detail)


def scene_at(seed: int, index: int, held_out: bool | None = None) -> tuple[Scene, np.random.Generator]:
    """Return the index-th scene of a seed, and the generator for its caption.

    With `held_out`, the first of its draws that is (True) or is not (False) a held-out combination.
    """
    rng = np.random.default_rng((seed, index))
    while True:
        scene = sample_scene(rng)
        if held_out is None or is_held_out(scene) == held_out:
            return scene, rng


# signed distances, in units of the radius: negative inside


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


def _moon(x: Array, y: Array) -> Array:
    return np.maximum(np.hypot(x, y) - 0.98, 0.78 - np.hypot(x - 0.46, y - 0.16))


def _arrow(x: Array, y: Array) -> Array:
    shaft = np.maximum(np.abs(x + 0.38) - 0.56, np.abs(y) - 0.27)
    head = np.maximum(np.abs(y) * 0.72 + (x - 0.98) * 0.70, 0.02 - x)
    return np.minimum(shaft, head)


DISTANCES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "cross": _cross,
    "diamond": _diamond,
    "moon": _moon,
    "arrow": _arrow,
}


def _grid(size: int) -> tuple[Array, Array]:
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2.0 - 1.0
    x, y = np.meshgrid(axis, -axis)
    return x.astype(np.float32), y.astype(np.float32)


def _blend(low: tuple[float, float, float], high: tuple[float, float, float], amount: Array) -> Array:
    amount = np.clip(amount, 0.0, 1.0)[..., None]
    return np.asarray(low, np.float32) * (1.0 - amount) + np.asarray(high, np.float32) * amount


def _draw_background(name: str, x: Array, y: Array, detail: int) -> Array:
    plain = {"white": (0.97, 0.97, 0.97), "black": (0.05, 0.05, 0.07), "grey": (0.55, 0.55, 0.57)}
    if name in plain:
        return _blend(plain[name], plain[name], np.zeros_like(x))
    if name == "sky":
        return _blend((0.88, 0.95, 1.0), (0.35, 0.65, 0.98), (y + 1.0) / 2.0)
    if name == "sunset":
        return _blend((1.0, 0.62, 0.30), (0.30, 0.12, 0.42), (y + 1.0) / 2.0)
    if name == "stripes":
        return _blend((0.97, 0.93, 0.80), (0.80, 0.70, 0.55), (np.sin(x * np.pi * 5.0) * 4.0 + 1.0) / 2.0)
    if name == "checkerboard":
        checks = np.sin(x * np.pi * 3.0) * np.sin(y * np.pi * 3.0)
        return _blend((0.95, 0.95, 0.95), (0.68, 0.68, 0.72), (checks * 10.0 + 1.0) / 2.0)
    rng = np.random.default_rng(detail)
    return {"meadow": _meadow, "bricks": _bricks, "night": _night}[name](x, y, rng)


def _meadow(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Draw blades of grass of random height and green under a pale sky."""
    blades = 20
    column = np.clip(((x + 1.0) / 2.0 * blades).astype(int), 0, blades - 1)
    across = ((x + 1.0) / 2.0 * blades) % 1.0 - 0.5
    height = rng.uniform(-0.18, 0.12, blades)[column] - 0.5 * np.abs(across)
    green = rng.uniform(0.0, 1.0, blades)[column]
    grass = _blend((0.20, 0.48, 0.16), (0.46, 0.72, 0.28), green)
    sky = _blend((0.78, 0.90, 0.98), (0.78, 0.90, 0.98), np.zeros_like(x))
    amount = np.clip((height - y) * len(x) / 2.0 + 0.5, 0.0, 1.0)[..., None]
    return sky * (1.0 - amount) + grass * amount


def _bricks(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Draw courses of bricks, each brick in another shade."""
    rows, columns = 8, 4
    down = (y + 1.0) / 2.0 * rows
    row = np.clip(down.astype(int), 0, rows - 1)
    along = (x + 1.0) / 2.0 * columns + 0.5 * (row % 2)
    shade = rng.uniform(0.0, 1.0, (rows, columns + 1))[row, np.clip(along.astype(int), 0, columns)]
    edge_px = np.minimum(0.5 - np.abs(down % 1.0 - 0.5), (0.5 - np.abs(along % 1.0 - 0.5)) * 2.0) * len(x) / rows
    brick = _blend((0.62, 0.34, 0.26), (0.78, 0.50, 0.38), shade)
    mortar = np.clip(1.3 - edge_px, 0.0, 1.0)[..., None]
    return brick * (1.0 - mortar) + np.float32(0.84) * mortar


def _night(x: Array, y: Array, rng: np.random.Generator) -> Array:
    """Draw stars of random place and brightness on a dark sky."""
    image = _blend((0.10, 0.10, 0.26), (0.03, 0.03, 0.12), (y + 1.0) / 2.0)
    for star_x, star_y, bright in rng.uniform((-1.0, -1.0, 0.5), (1.0, 1.0, 1.0), (18, 3)):
        glow = bright * np.clip(1.6 - np.hypot(x - star_x, y - star_y) * len(x) / 2.0, 0.0, 1.0)
        image = np.maximum(image, glow[..., None].astype(np.float32))
    return image


def _tone(colour: tuple[float, float, float], scale: float, offset: float) -> tuple[float, float, float]:
    red, green, blue = (scale * channel + offset for channel in colour)
    return red, green, blue


def _draw_fill(
    style: str, colour: tuple[float, float, float], x: Array, y: Array, depth_px: Array, radius: float
) -> Array:
    """Return the inside of an object; x and y are relative to its middle, depth_px is a pixel's depth inside."""
    pale, dark, lighter = _tone(colour, 0.35, 0.65), _tone(colour, 0.40, 0.0), _tone(colour, 0.40, 0.60)
    if style == "outlined":
        return _blend(colour, pale, depth_px - BORDER_PX + 0.5)
    if style == "striped":
        wave = np.sin((x + y) * (2.0 * np.pi / (STRIPE_PERIOD * np.sqrt(2.0))))
        return _blend(colour, lighter, (wave * 2.0 + 1.0) / 2.0)
    if style == "dotted":
        wave = np.cos(x * (2.0 * np.pi / DOT_PERIOD)) + np.cos(y * (2.0 * np.pi / DOT_PERIOD))
        return _blend(colour, lighter, (wave - 0.7) * 1.5 + 0.5)
    if style == "crosshatched":
        turn = 2.0 * np.pi / (HATCH_PERIOD * np.sqrt(2.0))
        lines = np.maximum(np.cos((x + y) * turn), np.cos((x - y) * turn))
        return _blend(lighter, dark, (lines - 0.72) * 3.0)
    if style == "shaded":
        light = (x - y) / (2.0 * radius) + 0.5
        lit, unlit = _blend(pale, colour, light * 2.0), _blend(colour, dark, light * 2.0 - 1.0)
        return np.where((light < 0.5)[..., None], lit, unlit)
    return _blend(colour, colour, np.zeros_like(x))


def draw(scene: Scene, size: int = IMAGE_SIZE, treatment: str | None = None) -> tuple[Array, Array]:
    """Return the image (size, size, 3) in 0..1 and the objects' coverage (size, size) in 0..1."""
    x, y = _grid(size)
    image = _draw_background(scene.background, x, y, scene.detail)
    covered = np.zeros_like(x)
    rim = np.full_like(x, np.inf)
    for thing in scene.things:
        radius = SIZES[thing.size]
        dx, dy = x - thing.x, y - thing.y
        distance_px = DISTANCES[thing.shape](dx / radius, dy / radius) * radius * size / 2.0
        coverage = np.clip(0.5 - distance_px, 0.0, 1.0)
        fill = _draw_fill(scene.style, COLOURS[thing.colour], dx, dy, -distance_px * IMAGE_SIZE / size, radius)
        image = image * (1.0 - coverage[..., None]) + fill * coverage[..., None]
        covered = np.maximum(covered, coverage)
        rim = np.minimum(rim, np.abs(distance_px) * IMAGE_SIZE / size)
    if treatment is not None:
        image = _treat(treatment, image, covered, rim, x, y)
    return np.clip(image, 0.0, 1.0).astype(np.float32), covered.astype(np.float32)


def _treat(treatment: str, image: Array, covered: Array, rim_px: Array, x: Array, y: Array) -> Array:
    """Return the whole image in another manner; rim_px is the distance to the nearest object's edge."""
    if treatment == "neon":  # tubes of the object's own colour that glow in the dark
        glow = np.exp(-rim_px / 3.0)[..., None]
        tube = np.clip(1.8 - rim_px, 0.0, 1.0)[..., None]
        hue = image / np.maximum(image.max(axis=-1, keepdims=True), 0.2)
        return np.maximum(0.12 * image, glow * hue * 0.75) + tube * 0.35
    if treatment == "blueprint":  # white lines on a blue sheet with a fine grid
        ruled = np.minimum(np.abs(x * 4.0 - np.round(x * 4.0)), np.abs(y * 4.0 - np.round(y * 4.0))) < 0.07
        line = np.clip(1.9 - rim_px, 0.0, 1.0)
        strength = np.maximum(line, np.where(ruled, 0.25, 0.0) + 0.22 * covered)
        return _blend((0.07, 0.20, 0.55), (0.95, 0.97, 1.0), strength)
    block = len(x) // 16  # mosaic: 16 by 16 tiles with dark joints
    tiles = image.reshape(16, block, 16, block, 3).mean(axis=(1, 3)).repeat(block, axis=0).repeat(block, axis=1)
    joint = (np.arange(len(x)) % block == 0)[:, None] | (np.arange(len(x)) % block == 0)[None, :]
    return tiles * np.where(joint, 0.55, 1.0)[..., None].astype(np.float32)

"""Edit a prompt as users do: repeat it, reword it, change one thing or several.

An utterance is a scene with the seed and the terseness of its caption, so that it can be repeated and edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from zoo.drawing.captions import Caption, labels, natural_caption
from zoo.drawing.scenes import (
    BACKGROUNDS,
    COLOURS,
    PLACE_OFFSET,
    PLACES,
    SHAPES,
    STYLES,
    UNREADABLE,
    Scene,
    Thing,
    sample_scene,
)

# the probability that a caption says an attribute: most say nearly all, some hardly any
TERSENESS = (0.97, 0.88, 0.7, 0.5)


@dataclass(frozen=True)
class Utterance:
    scene: Scene
    wording: int
    keep: float

    @property
    def caption(self) -> Caption:
        return natural_caption(self.scene, np.random.default_rng(self.wording), self.keep)

    @property
    def text(self) -> str:
        return self.caption.text

    @property
    def asked(self) -> tuple[int, ...]:
        """Return the text's content: a class index for each of ATTRIBUTES, UNSAID if the text omits it."""
        return tuple(labels(self.scene, self.caption.said))


def fresh(rng: np.random.Generator) -> Utterance:
    """Return a random new utterance."""
    return Utterance(sample_scene(rng), _seed(rng), float(rng.choice(TERSENESS)))


def reworded(said: Utterance, rng: np.random.Generator) -> Utterance:
    """Return the same scene in other words, possibly with other omissions."""
    return replace(said, wording=_seed(rng))


def changed(said: Utterance, rng: np.random.Generator, changes: int, reword: bool) -> Utterance:
    """Change `changes` of the scene's attributes, and the sentence's form as well with `reword`."""
    scene = said.scene
    kinds = [*CHANGES]
    for index in rng.permutation(len(kinds))[:changes]:
        scene = CHANGES[kinds[int(index)]](scene, rng)
    return Utterance(scene, _seed(rng) if reword else said.wording, said.keep)


def _background(scene: Scene, rng: np.random.Generator) -> Scene:
    options = [b for b in BACKGROUNDS if all((thing.colour, b) not in UNREADABLE for thing in scene.things)]
    return replace(scene, background=_other(rng, options, scene.background))


def _style(scene: Scene, rng: np.random.Generator) -> Scene:
    return replace(scene, style=_other(rng, STYLES, scene.style))


def _shape(scene: Scene, rng: np.random.Generator) -> Scene:
    return _with_thing(scene, rng, lambda thing: replace(thing, shape=_other(rng, SHAPES, thing.shape)))


def _colour(scene: Scene, rng: np.random.Generator) -> Scene:
    taken = {thing.colour for thing in scene.things}
    options = [c for c in COLOURS if c not in taken and (c, scene.background) not in UNREADABLE]
    return _with_thing(scene, rng, lambda thing: replace(thing, colour=_other(rng, options, thing.colour)))


def _size(scene: Scene, rng: np.random.Generator) -> Scene:
    """Two objects are never large, three always small."""
    sizes = {1: ("small", "medium", "large"), 2: ("small", "medium")}.get(len(scene.things), ("small",))
    return _with_thing(scene, rng, lambda thing: replace(thing, size=_other(rng, sizes, thing.size)))


def _standing(scene: Scene, rng: np.random.Generator) -> Scene:
    """Move the single object, or swap two or three, so that the caption names them in another order."""
    if scene.place is None:
        # The places stay; the objects swap.
        spots = [(thing.x, thing.y) for thing in scene.things]
        turned = (*scene.things[1:], scene.things[0])
        moved = tuple(replace(thing, x=x, y=y) for thing, (x, y) in zip(turned, spots, strict=True))
        return replace(scene, things=moved)
    place = _other(rng, tuple(PLACES), scene.place)
    (x, y), (was_x, was_y) = PLACES[place], PLACES[scene.place]
    thing = scene.things[0]
    moved_thing = replace(thing, x=thing.x + PLACE_OFFSET * (x - was_x), y=thing.y + PLACE_OFFSET * (y - was_y))
    return replace(scene, things=(moved_thing,), place=place)


CHANGES: dict[str, Callable[[Scene, np.random.Generator], Scene]] = {
    "background": _background,
    "style": _style,
    "shape": _shape,
    "colour": _colour,
    "size": _size,
    "standing": _standing,
}


def _with_thing(scene: Scene, rng: np.random.Generator, change: Callable[[Thing], Thing]) -> Scene:
    which = int(rng.integers(len(scene.things)))
    things = list(scene.things)
    things[which] = change(things[which])
    return replace(scene, things=tuple(things))


def _other(rng: np.random.Generator, options: tuple[str, ...] | list[str], present: str) -> str:
    """Return one of the others, or the present one if there is none."""
    others = [option for option in options if option != present]
    return others[int(rng.integers(len(others)))] if others else present


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))

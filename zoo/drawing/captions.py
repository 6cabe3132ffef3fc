"""Caption scenes: several forms of sentence, synonyms, and randomly omitted attributes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zoo.drawing.scenes import BACKGROUNDS, COLOURS, PLACES, RELATIONS, SHAPES, SIZES, STYLES, Scene, Thing

SYNONYMS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "ball", "dot"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star", "five-pointed star"),
    "heart": ("heart", "love heart"),
    "ring": ("ring", "hoop", "donut"),
    "cross": ("cross", "plus sign"),
    "diamond": ("diamond", "rhombus"),
    "moon": ("moon", "crescent"),
    "arrow": ("arrow", "pointer"),
    "red": ("red", "scarlet", "crimson"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "cyan": ("cyan", "turquoise", "teal"),
    "blue": ("blue", "navy"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rose"),
    "brown": ("brown", "chocolate"),
    "black": ("black", "jet black"),
    "small": ("small", "tiny", "little"),
    "medium": ("medium", "medium-sized", "mid-sized"),
    "large": ("large", "big", "huge"),
    "flat": ("flat", "plain", "solid"),
    "outlined": ("outlined", "bordered", "line-drawn"),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka-dot"),
    "crosshatched": ("crosshatched", "engraved"),
    "shaded": ("shaded", "glossy", "three-dimensional"),
    "left of": ("to the left of", "left of", "beside and left of"),
    "above": ("above", "over", "on top of"),
    "in a row": ("in a row", "side by side", "from left to right"),
    "in a column": ("in a column", "stacked", "from top to bottom"),
}
REVERSED = {"left of": ("to the right of", "right of"), "above": ("below", "under", "beneath")}
BACKGROUND_PHRASES: dict[str, tuple[str, ...]] = {
    "white": ("on a white background", "on white", "on white paper"),
    "black": ("on a black background", "on black", "in the dark"),
    "grey": ("on a grey background", "on a gray background", "on grey"),
    "sky": ("in the sky", "against a blue sky", "on a sky background"),
    "sunset": ("at sunset", "against a sunset", "in front of a sunset sky"),
    "meadow": ("in a meadow", "over green grass", "on a meadow background"),
    "stripes": ("on a striped background", "in front of stripes", "on beige stripes"),
    "checkerboard": ("on a checkerboard", "on a checkered background", "on a chequered floor"),
    "bricks": ("on a brick wall", "in front of bricks", "against a wall of bricks"),
    "night": ("at night", "under the stars", "on a starry night sky"),
}
PLACE_PHRASES: dict[str, tuple[str, ...]] = {
    place: (f"in the {place}", f"at the {place}", f"in the {place} corner" if " " in place else f"on the {place} side")
    for place in PLACES
} | {
    "centre": ("in the centre", "in the middle", "in the center"),
    "top": ("at the top", "near the top edge"),
    "bottom": ("at the bottom", "near the bottom edge"),
}
OPENINGS = ("", "", "", "a picture of ", "a drawing of ", "an image of ", "a painting showing ")

# a caption's attributes in the order of label vectors, each with its values
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "count": ("one", "two", "three"),
    "background": BACKGROUNDS,
    "style": STYLES,
    "place": tuple(PLACES),
    "relation": RELATIONS,
    "shape": SHAPES,
    "colour": tuple(COLOURS),
    "size": tuple(SIZES),
    "second_shape": SHAPES,
    "second_colour": tuple(COLOURS),
    "second_size": tuple(SIZES),
    "third_shape": SHAPES,
    "third_colour": tuple(COLOURS),
}
THINGS = ("", "second_", "third_")
UNSAID = -100


@dataclass(frozen=True)
class Caption:
    text: str
    said: frozenset[str]


def attributes(scene: Scene) -> dict[str, str]:
    """Return a scene's attributes by name."""
    found = {"count": ATTRIBUTES["count"][len(scene.things) - 1], "background": scene.background, "style": scene.style}
    if scene.place is not None:
        found["place"] = scene.place
    if scene.relation is not None:
        found["relation"] = scene.relation
    for prefix, thing in zip(THINGS, scene.things, strict=False):
        found |= {f"{prefix}shape": thing.shape, f"{prefix}colour": thing.colour}
        if len(scene.things) < 3:  # three things are always small
            found[f"{prefix}size"] = thing.size
    return found


def labels(scene: Scene, said: frozenset[str] | None = None) -> list[int]:
    """Return a class index per attribute; UNSAID if the scene has none or the caption omits it."""
    found = attributes(scene)
    return [
        values.index(found[name]) if name in found and (said is None or name in said) else UNSAID
        for name, values in ATTRIBUTES.items()
    ]


def _article(phrase: str) -> str:
    return f"an {phrase}" if phrase[0] in "aeiou" else f"a {phrase}"


def canonical_caption(scene: Scene) -> str:
    """Return a caption with every attribute in its canonical word, in one form of sentence."""
    behind = BACKGROUND_PHRASES[scene.background][0]
    if len(scene.things) == 3:
        row = [_article(f"{scene.style} {t.colour} {t.shape}") for t in scene.things]
        return f"{row[0]}, {row[1]} and {row[2]} {scene.relation} {behind}"
    things = [_article(f"{t.size} {scene.style} {t.colour} {t.shape}") for t in scene.things]
    if scene.relation is not None:
        return f"{things[0]} {SYNONYMS[scene.relation][0]} {things[1]} {behind}"
    return f"{things[0]} {PLACE_PHRASES[str(scene.place)][0]} {behind}"


class _Speaker:
    """Choose words for one caption and record its attributes."""

    def __init__(self, rng: np.random.Generator, keep: float) -> None:
        self.rng, self.keep, self.said = rng, keep, {"count"}

    def pick(self, options: tuple[str, ...]) -> str:
        # the first option, the plain word, half of the time
        return options[0] if self.rng.random() < 0.5 else options[int(self.rng.integers(len(options)))]

    def maybe(self, name: str, options: tuple[str, ...]) -> str:
        if self.rng.random() >= self.keep:
            return ""
        self.said.add(name)
        return self.pick(options)

    def thing(self, thing: Thing, prefix: str, style: str, sized: bool = True) -> str:
        words = [
            self.maybe(f"{prefix}size", SYNONYMS[thing.size]) if sized else "",
            self.maybe("style", SYNONYMS[style]) if style else "",
            self.maybe(f"{prefix}colour", SYNONYMS[thing.colour]),
            self.pick(SYNONYMS[thing.shape]),
        ]
        self.said.add(f"{prefix}shape")
        return _article(" ".join(word for word in words if word))


def natural_caption(scene: Scene, rng: np.random.Generator, keep: float = 0.88) -> Caption:
    """Return a random description of the scene; each attribute is omitted with probability 1 - keep."""
    speaker = _Speaker(rng, keep)
    apart = len(scene.things) > 1 or rng.random() < 0.25  # the style said once, at the end
    behind = speaker.maybe("background", BACKGROUND_PHRASES[scene.background])
    style = "" if apart else scene.style
    if len(scene.things) == 3:
        body = _line(scene, speaker, rng)
    elif len(scene.things) == 2:
        body = _pair(scene, speaker, rng)
    else:
        body = speaker.thing(scene.things[0], "", style)
        where = speaker.maybe("place", PLACE_PHRASES[str(scene.place)])
        body = f"{where}, {body}" if where and rng.random() < 0.2 else f"{body} {where}".strip()
    if apart and (manner := speaker.maybe("style", SYNONYMS[scene.style])):
        body = f"{body}, {manner} style" if rng.random() < 0.7 else f"{manner} drawing of {body}"
    text = f"{speaker.pick(OPENINGS)}{body}" if " drawing of " not in body else body
    if behind:
        text = f"{behind}, {text}" if rng.random() < 0.2 else f"{text} {behind}"
    return Caption(" ".join(text.split()), frozenset(speaker.said))


def _pair(scene: Scene, speaker: _Speaker, rng: np.random.Generator) -> str:
    first = speaker.thing(scene.things[0], "", "")
    second = speaker.thing(scene.things[1], "second_", "")
    speaker.said.add("relation")
    relation = str(scene.relation)
    if rng.random() < 0.3:
        return f"{second} {speaker.pick(REVERSED[relation])} {first}"
    return f"{first} {speaker.pick(SYNONYMS[relation])} {second}"


def _line(scene: Scene, speaker: _Speaker, rng: np.random.Generator) -> str:
    first, second, third = (
        speaker.thing(thing, prefix, "", sized=False) for prefix, thing in zip(THINGS, scene.things, strict=True)
    )
    speaker.said.add("relation")
    manner = speaker.pick(SYNONYMS[str(scene.relation)])
    return f"{first}, {second} and {third} {manner}" if rng.random() < 0.7 else f"{manner}: {first}, {second}, {third}"

"""Make captions in pairs, from a rewording of one scene to two unrelated scenes.

The first of a pair is the request; the second, its donor, was generated before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.drawing.captions import ATTRIBUTES, THINGS, Caption, labels, natural_caption
from zoo.drawing.dataset import HELD_OUT_SEED
from zoo.drawing.scenes import UNREADABLE, Scene, Thing, scene_at

DONOR_SEED = 6
KINDS = ("reworded", "one attribute changed", "several changed", "another scene")
SEVERAL = (2, 5)  # attributes changed, the upper end excluded


@dataclass(frozen=True)
class CaptionPairs:
    """Hold `captions[i]` of receiver i with the donors `donors[i]`, one of each kind; `asked` as in `Prompts`."""

    captions: tuple[str, ...]
    donors: tuple[tuple[str, ...], ...]
    asked: Tensor  # int64 (receivers, attributes)
    seeds: tuple[int, ...]  # of the receivers' noise, and of their donors'

    def flat(self) -> tuple[list[str], list[str], list[int]]:
        """Return caption, donor's caption and seed of each pair, receiver by receiver."""
        pairs = [
            (caption, donor, seed)
            for caption, donors, seed in zip(self.captions, self.donors, self.seeds, strict=True)
            for donor in donors
        ]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs], [pair[2] for pair in pairs]

    def __len__(self) -> int:
        return len(self.captions)


def caption_pairs(count: int) -> CaptionPairs:
    """Return pairs for the first `count` prompts of the examination."""
    captions, donors, asked = [], [], []
    for index in range(count):
        scene, rng = scene_at(HELD_OUT_SEED, index, held_out=True)
        caption = natural_caption(scene, rng)
        captions.append(caption.text)
        asked.append(labels(scene, caption.said))
        donors.append(tuple(_donors(scene, caption, index)))
    return CaptionPairs(tuple(captions), tuple(donors), torch.tensor(asked), tuple(range(count)))


def _donors(scene: Scene, caption: Caption, index: int) -> Iterator[str]:
    """Yield donors in the order of KINDS."""
    rng = np.random.default_rng((DONOR_SEED, index))
    yield natural_caption(scene, rng).text
    yield _in_the_same_words(changed(scene, caption.said, 1, rng), index)
    yield _in_the_same_words(changed(scene, caption.said, int(rng.integers(*SEVERAL)), rng), index)
    yield natural_caption(*scene_at(DONOR_SEED, index)).text


def _in_the_same_words(scene: Scene, index: int) -> str:
    """Return the scene's caption with the same sentence form, by the receiver's generator."""
    _, rng = scene_at(HELD_OUT_SEED, index, held_out=True)
    return natural_caption(scene, rng).text


def changed(scene: Scene, said: frozenset[str], count: int, rng: np.random.Generator) -> Scene:
    """Return the scene with other values for `count` attributes that its caption states; objects stay readable."""
    changeable = [name for name in ATTRIBUTES if name in said and name not in ("count", "relation")]
    while True:
        found = scene
        for name in rng.permutation(changeable)[:count].tolist():
            found = _with_another(found, name, rng)
        if all((thing.colour, found.background) not in UNREADABLE for thing in found.things):
            return found


def _with_another(scene: Scene, name: str, rng: np.random.Generator) -> Scene:
    prefix, _, field = name.rpartition("_")
    if name in ("background", "style", "place"):
        return replace(scene, **_changed(scene, name, name, rng))
    number = THINGS.index(f"{prefix}_" if prefix else "")
    things = list(scene.things)
    things[number] = replace(things[number], **_changed(things[number], name, field, rng))
    return replace(scene, things=tuple(things))


def _changed(of: Scene | Thing, name: str, field: str, rng: np.random.Generator) -> dict[str, Any]:
    return {field: _another(name, str(getattr(of, field)), rng)}


def _another(name: str, value: str, rng: np.random.Generator) -> str:
    others = [other for other in ATTRIBUTES[name] if other != value]
    return others[int(rng.integers(len(others)))]

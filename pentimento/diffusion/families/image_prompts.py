"""Define image prompts: keys and values that cross-attention reads from an image in addition to the text (IP-Adapter,
Ye et al. 2023)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class CrossAttention:
    """Describe a cross-attention layer: the width of the text states, the width of its keys, and its place in the
    network's pass."""

    text_width: int
    key_width: int
    place: int


@dataclass(frozen=True, eq=False)
class ImagePrompt:
    """Hold an image prompt of one image: keys and values of all cross-attention layers (rows, tokens, widths), in the
    order of the pass, with a row for each half of the guidance, and the weight of the attention to them."""

    projected: Tensor
    scale: float


@dataclass(frozen=True)
class ImagePromptRows:
    """Hold an image prompt of each row of a batch: `projected` (rows, tokens, widths) and `scales` (rows,). Rows
    without one have zeros, which add nothing."""

    projected: Tensor
    scales: Tensor


def stack_image_prompts(
    parts: Sequence[Sequence[ImagePrompt]], rows_each: int, row_count: int
) -> tuple[ImagePromptRows, ...]:
    """Return the image prompts of all rows, `parts` by image: one for each number of tokens, and for each further
    prompt of an image."""
    slots: defaultdict[tuple[int, int], list[tuple[slice, ImagePrompt]]] = defaultdict(list)
    for place, prompts in enumerate(parts):
        rows = slice(place * rows_each, (place + 1) * rows_each)
        for number, prompt in enumerate(prompts):
            slots[prompt.projected.shape[1], number].append((rows, prompt))
    return tuple(_stacked(slots[key], row_count) for key in sorted(slots))


def _stacked(held: Sequence[tuple[slice, ImagePrompt]], row_count: int) -> ImagePromptRows:
    some = held[0][1].projected
    found = ImagePromptRows(some.new_zeros((row_count, *some.shape[1:])), some.new_zeros(row_count))
    for rows, prompt in held:
        found.projected[rows] = prompt.projected
        found.scales[rows] = prompt.scale
    return found

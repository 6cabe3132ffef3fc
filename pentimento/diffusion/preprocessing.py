"""Preprocess images to a vision tower's input pixels, as transformers' CLIPImageProcessor does with PIL."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.images.decoding import resized

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
BICUBIC = 3
# Larger than the input of any vision tower.
MAX_EDGE_PX = 2048


@dataclass(frozen=True)
class ImagePreprocessing:
    """Hold the steps of preprocessor_config.json. `resize` is the shortest edge or (height, width), `crop` (height,
    width), both in pixels; None skips the step. `rounds_crop`: half a pixel at the margin is rounded to even, as in
    torchvision, not down."""

    resize: int | tuple[int, int] | None = 224
    resample: int = BICUBIC
    crop: tuple[int, int] | None = (224, 224)
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = CLIP_MEAN
    std: tuple[float, ...] | None = CLIP_STD
    rounds_crop: bool = False


def read_preprocessing(path: Path, image_size: int, *, crops: bool = True) -> ImagePreprocessing:
    """Return the steps of a file; `crops`: the image processor crops the centre unless the file says no. Raises
    BadCheckpoint if the result would not be `image_size` pixels high and wide."""
    return preprocessing_of(path, {"do_center_crop": crops, **read_json_object(path)}, image_size)


def preprocessing_of(path: Path, document: Mapping[str, Any], image_size: int) -> ImagePreprocessing:
    """Return the steps that `document` states, by the keys of preprocessor_config.json. Raises BadCheckpoint, naming
    `path`, if the result would not be `image_size` pixels high and wide."""
    try:
        steps = _parse(document)
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path}: cannot be understood ({error})") from None
    _check_edges(path, steps)
    outcome = steps.crop or steps.resize
    if outcome != (image_size, image_size):
        raise BadCheckpoint(f"{path}: must give {image_size} x {image_size} pixels, gives {outcome}")
    return steps


def _check_edges(path: Path, steps: ImagePreprocessing) -> None:
    resize = (steps.resize,) if isinstance(steps.resize, int) else steps.resize or ()
    for edge in (*resize, *(steps.crop or ())):
        if not 1 <= edge <= MAX_EDGE_PX:
            raise BadCheckpoint(f"{path}: an edge must be between 1 and {MAX_EDGE_PX} pixels, got {edge}")


def _parse(document: Mapping[str, Any]) -> ImagePreprocessing:
    wants = {step: bool(document.get(f"do_{step}", True)) for step in ("resize", "center_crop", "rescale", "normalize")}
    return ImagePreprocessing(
        resize=_edges(document.get("size", {"shortest_edge": 224})) if wants["resize"] else None,
        resample=Image.Resampling(int(document.get("resample", BICUBIC))),
        crop=_pair(document.get("crop_size", {"height": 224, "width": 224})) if wants["center_crop"] else None,
        scale=_number(document.get("rescale_factor", 1 / 255)) if wants["rescale"] else None,
        mean=_colours(document.get("image_mean", CLIP_MEAN)) if wants["normalize"] else None,
        std=_divisors(document.get("image_std", CLIP_STD)) if wants["normalize"] else None,
    )


def _number(value: Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(f"{found} is no finite number")
    return found


def _colours(values: Any) -> tuple[float, ...]:
    red, green, blue = map(_number, values)
    return (red, green, blue)


def _divisors(values: Any) -> tuple[float, ...]:
    found = _colours(values)
    if not all(found):
        raise ValueError("image_std has a 0")
    return found


def _edges(size: Any) -> int | tuple[int, int]:
    if isinstance(size, int):
        return size
    return int(size["shortest_edge"]) if "shortest_edge" in size else _pair(size)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))


def to_pixels(image: Image.Image, steps: ImagePreprocessing) -> NDArray[np.float32]:
    """Return the pixels of an RGB image, (3, height, width) float32."""
    if steps.resize is not None:
        height, width = _resized(image.size, steps.resize)
        image = resized(image, (width, height), Image.Resampling(steps.resample))
    pixels: NDArray[Any] = np.moveaxis(np.asarray(image), -1, 0)
    if steps.crop is not None:
        pixels = _center_crop(pixels, steps.crop, rounds=steps.rounds_crop)
    values = (pixels.astype(np.float64) * (1.0 if steps.scale is None else steps.scale)).astype(np.float32)
    if steps.mean is not None and steps.std is not None:
        values = (values - _column(steps.mean)) / _column(steps.std)
    return np.ascontiguousarray(values, dtype=np.float32)


def _resized(size: tuple[int, int], wanted: int | tuple[int, int]) -> tuple[int, int]:
    """Return the resized (height, width) of a `size` (width, height)."""
    if isinstance(wanted, tuple):
        return wanted
    width, height = size
    longest = int(wanted * max(size) / min(size))
    return (longest, wanted) if width <= height else (wanted, longest)


def _center_crop(pixels: NDArray[Any], size: tuple[int, int], *, rounds: bool) -> NDArray[Any]:
    """Crop (3, height, width) to (3, *size); smaller images get a black border, wider above and to the left."""
    missing = [max(0, wanted - given) for wanted, given in zip(size, pixels.shape[1:], strict=True)]
    if any(missing):
        pixels = np.pad(pixels, [(0, 0), *((math.ceil(gap / 2), gap // 2) for gap in missing)])
    margins = [given - wanted for wanted, given in zip(size, pixels.shape[1:], strict=True)]
    top, left = (round(margin / 2) if rounds else margin // 2 for margin in margins)
    return pixels[:, top : top + size[0], left : left + size[1]]


def _column(values: tuple[float, ...]) -> NDArray[np.float32]:
    return np.asarray(values, dtype=np.float32).reshape(-1, 1, 1)

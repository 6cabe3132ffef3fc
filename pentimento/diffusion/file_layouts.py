"""Recognise a checkpoint in one file by the names and shapes of its tensors, without torch, and read GGUF files
(llama.cpp's format): names, shapes and types, then tensors for diffusers' mappings. Nothing in a file is run.

A file has the names of the original code. The published configurations of its kind are package data; folders of
components in a directory of the file's name, without its suffix, replace or complete them.

    recognise(Path("dreamshaper.safetensors"), set(rules)).layout.title  # Stable Diffusion 1.x
"""

import importlib.util
import json
import re
import statistics
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.safetensors_header import ITEM_SIZES, SafetensorsHeader, TensorEntry, read_header

GGUF = ".gguf"
_MAGIC = b"GGUF"
# The types that diffusers turns into weights.
GGUF_TYPES = frozenset(
    {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
     "IQ4_NL", "IQ4_XS"}
)  # fmt: skip


def gguf_header(file: Path) -> SafetensorsHeader:
    """Return the tensors of a file. Raises FailedPrecondition without the package gguf, ValueError for a damaged file
    and for a type that cannot be read, naming tensor and type."""
    if importlib.util.find_spec("gguf") is None:
        raise FailedPrecondition("LIBRARY_MISSING", f"{file}: needs a package: `pip install 'pentimento[worker]'`")
    with file.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
    from gguf import GGUFReader

    try:
        found = GGUFReader(file).tensors
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:200] or "it is truncated") from None
    entries = {}
    for tensor in found:
        kind = tensor.tensor_type.name
        if kind not in GGUF_TYPES:
            raise ValueError(f"tensor {tensor.name[:80]!r} is of type {kind}, not of {', '.join(sorted(GGUF_TYPES))}")
        # GGML states the innermost side first.
        entries[tensor.name] = TensorEntry(kind, tuple(int(side) for side in reversed(tensor.shape)))
    return SafetensorsHeader(entries, {}, 0)


def gguf_tensors(file: Path, wanted: Collection[str]) -> dict[str, Any]:
    """Return the named tensors, the packed ones as diffusers' GGUFParameter."""
    from diffusers.models.model_loading_utils import load_gguf_checkpoint

    found = load_gguf_checkpoint(str(file))
    return {name: found[name] for name in wanted}


LAYOUTS = Path(__file__).parent / "layouts"
# CLIP's byte pair merges, which its vocabulary follows from.
CLIP_MERGES = LAYOUTS / "clip_merges.txt"
DENOISER_PREFIX = "model.diffusion_model."
_CONV_IN, _CONV_DIMENSIONS = "input_blocks.0.0.weight", 4
# Files of other kinds, by a part of a tensor's name.
_FOREIGN = {
    "lora_unet_": "a LoRA",
    "lora_te": "a LoRA",
    ".lora_": "a LoRA",
    "emb_params": "a textual inversion",
    "control_model.": "a ControlNet",
    "edm_mean": "Playground 2.5, which is not supported",
    "conditioner.embedders.0.model.": "SDXL's refiner, which is not supported",
    "single_stream_modulation.": "FLUX.2, which is supported as a directory of diffusers alone",
    "down_blocks.": "one component as diffusers writes it, which belongs into a directory with the others",
    "transformer_blocks.": "one component as diffusers writes it, which belongs into a directory with the others",
}
# Refused even if everything else is that of a supported kind.
_ALWAYS_FOREIGN = ("edm_mean", "control_model.", "single_stream_modulation.")
_PREDICTIONS = {"v": "v_prediction", "v_prediction": "v_prediction", "epsilon": "epsilon", "eps": "epsilon"}
# In Stable Diffusion 2.x's models that predict velocity this tensor deviates by more (ComfyUI's rule).
_VELOCITY_SIGN, _VELOCITY_DEVIATION = "output_blocks.11.1.transformer_blocks.0.norm1.bias", 0.09
# Lightning and Hyper-SD. With Stability's Turbo models their cards ask for trailing timesteps; a file without a
# scheduler says it by its name only.
FEW_STEPS_NAME = re.compile(r"lightning|(?<![a-z])hyper(?![a-z])")
_TURBO_NAME = re.compile(r"sd[-_]?(xl[-_]?)?turbo")
_STABLE_DIFFUSION_2 = "cond_stage_model.model."
_FLOATS = {"F16": "e", "F32": "f"}


@dataclass(frozen=True)
class FileLayout:
    """Hold the published data of a kind of checkpoint: its title; the prefixes that its files may have (`signs`, the
    denoiser's first); shapes of tensors, None for a tensor that it lacks; the prefix of each network's tensors; its
    model_index.json and configurations by name below the directory."""

    title: str
    signs: tuple[str, ...]
    shapes: Mapping[str, list[int | None] | None]
    keys: Mapping[str, str]
    index: Mapping[str, Any]
    configs: Mapping[str, Mapping[str, Any]]

    @property
    def denoiser(self) -> str:
        """Return the name of the component that denoises."""
        return next(iter(self.keys))


@dataclass(frozen=True)
class RecognisedFile:
    """Hold a file's layout, the prefix of each network that it holds, its configurations, and the first tensor with
    another shape than published ("" if all agree)."""

    layout: FileLayout
    held: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]]
    unpublished: str


def parts_of(file: Path) -> Path:
    """Return the directory that completes a file."""
    return file.with_suffix("")


@cache
def published_layouts() -> tuple[FileLayout, ...]:
    """Return all layouts."""
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(LAYOUTS.glob("*.json"))}
    return tuple(_layout(document, documents) for document in documents.values())


def _layout(document: Mapping[str, Any], documents: Mapping[str, Mapping[str, Any]]) -> FileLayout:
    """Return a layout; what it does not state is that of the layout that it is `like`."""
    like = documents.get(document.get("like", ""), {})
    merged = {**like, **document}
    index = {**like.get("index", {}), **document.get("index", {})}
    configs = {**like.get("configs", {}), **document["configs"]}
    return FileLayout(merged["title"], tuple(merged["signs"]), merged["shapes"], merged["keys"], index, configs)


def recognise(file: Path, pipeline_classes: Collection[str] = ()) -> RecognisedFile:
    """Return the kind of a file. If several kinds have its tensors, one of `pipeline_classes` goes first. Raises
    BadCheckpoint for a damaged file, one of another kind, and tensors of two kinds, naming a tensor of each."""
    header = _header_of(file)
    shapes = {name.removeprefix(DENOISER_PREFIX): entry.shape for name, entry in header.tensors.items()}
    candidates = _candidates(file, shapes, pipeline_classes)
    fitting = [layout for layout in candidates if not _unpublished(layout, shapes)]
    layout = (fitting or candidates)[0]
    configs = {**layout.configs, **_own_configs(file, header, layout, shapes)}
    return RecognisedFile(layout, _held(layout, header), configs, _unpublished(layout, shapes))


def is_scale(name: str) -> bool:
    """Return whether a tensor is the scale of a weight in FP8, as ComfyUI names it."""
    return name.endswith((".scale_weight", ".weight_scale"))


def _header_of(file: Path) -> SafetensorsHeader:
    try:
        return gguf_header(file) if file.suffix == GGUF else read_header(file)
    except OSError as error:
        raise BadCheckpoint(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not a {file.suffix[1:]} file: {error}") from None


def _candidates(file: Path, names: Collection[str], pipeline_classes: Collection[str]) -> list[FileLayout]:
    known = published_layouts()
    signs = {sign: name for layout in known for sign in layout.signs if (name := _first(names, [sign]))}
    if not any(layout.signs[0] in signs for layout in known) or _first(names, _ALWAYS_FOREIGN, inside=True):
        raise BadCheckpoint(f"{file}: {_described(names)}")
    found = [layout for layout in known if signs.keys() <= set(layout.signs)]
    if not found:
        raise BadCheckpoint(f"{file}: holds tensors of two families, {' and '.join(_strangers(signs))}")
    return sorted(found, key=lambda layout: layout.index["_class_name"] not in pipeline_classes)


def _first(names: Iterable[str], parts: Iterable[str], *, inside: bool = False) -> str:
    """Return the first name that starts with one of the parts, or has one `inside`; "" if none does."""
    wanted = tuple(parts)
    return next((name for name in names if name.startswith(wanted) or (inside and _has(name, wanted))), "")


def _has(name: str, parts: Iterable[str]) -> bool:
    return any(part in name for part in parts)


def _described(names: Collection[str]) -> str:
    for part, kind in _FOREIGN.items():
        if name := _first(names, [part], inside=True):
            return f"{name[:80]!r} says that it is {kind}"
    titles = ", ".join(layout.title for layout in published_layouts())
    return f"{min(names, default='')[:80]!r} is no tensor of a model in the original layout ({titles})"


def _strangers(signs: Mapping[str, str]) -> tuple[str, str]:
    """Return the first two tensors that no kind has together."""
    pairs = ((one, other) for one in signs for other in signs if one < other)
    known = published_layouts()
    apart = (pair for pair in pairs if not any({*pair} <= set(layout.signs) for layout in known))
    one, other = next(apart, tuple(signs)[:2])
    return signs[one][:80], signs[other][:80]


def _unpublished(layout: FileLayout, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the first tensor that the layout has with another shape, or lacks."""
    for name, wanted in layout.shapes.items():
        found = shapes.get(name)
        if (found is None) != (wanted is None):
            return name
        if found is not None and wanted is not None and not _agree(found, wanted):
            return name
    return ""


def _agree(found: tuple[int, ...], wanted: list[int | None]) -> bool:
    return len(found) == len(wanted) and all(size in (None, one) for one, size in zip(found, wanted, strict=True))


def _held(layout: FileLayout, header: SafetensorsHeader) -> dict[str, str]:
    """Return the prefix of each network with tensors in the file; that of a denoiser alone may be missing."""
    held = {part: prefix for part, prefix in layout.keys.items() if _first(header.tensors, [prefix])}
    if layout.denoiser not in held and _first(header.tensors, layout.signs[:1]):
        held[layout.denoiser] = ""
    return held


def _own_configs(
    file: Path, header: SafetensorsHeader, layout: FileLayout, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, Any]]:
    """Return the configurations that the file changes: the denoiser's input channels (an inpainting model has nine),
    and the scheduler's prediction and, for a model distilled to few steps, its spacing."""
    changed: dict[str, dict[str, Any]] = {}
    if len(shapes.get(_CONV_IN, ())) == _CONV_DIMENSIONS:
        name = f"{layout.denoiser}/config.json"
        changed[name] = {**layout.configs[name], "in_channels": shapes[_CONV_IN][1]}
        changed |= _scheduler(file, header, layout, shapes)
    return changed


def _scheduler(
    file: Path, header: SafetensorsHeader, layout: FileLayout, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, dict[str, Any]]:
    name = "scheduler/scheduler_config.json"
    own = dict(layout.configs[name])
    stated = _PREDICTIONS.get(header.metadata.get("modelspec.prediction_type", ""))
    if "v_pred" in shapes:
        stated = "v_prediction"
    elif stated is None and _STABLE_DIFFUSION_2 in layout.signs:
        stated = "v_prediction" if _deviation(file, header) > _VELOCITY_DEVIATION else "epsilon"
    if stated is not None:
        own["prediction_type"] = stated
    name_of_file = file.stem.lower()
    if FEW_STEPS_NAME.search(name_of_file) or _TURBO_NAME.match(name_of_file):
        own["timestep_spacing"] = "trailing"
    if "ztsnr" in shapes:
        own |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    return {name: own}


def _deviation(file: Path, header: SafetensorsHeader) -> float:
    """Return the standard deviation of the tensor that tells velocity from noise; 0 without it."""
    offset = header.start
    for name, entry in header.tensors.items() if file.suffix != GGUF else ():
        size = ITEM_SIZES[entry.dtype]
        count = 1
        for side in entry.shape:
            count *= side
        if name == DENOISER_PREFIX + _VELOCITY_SIGN and entry.dtype in _FLOATS:
            with file.open("rb") as opened:
                opened.seek(offset)
                values: tuple[float, ...] = struct.unpack(f"<{count}{_FLOATS[entry.dtype]}", opened.read(count * size))
            return statistics.pstdev(values)
        offset += count * size
    return 0.0

"""Write a discriminator's directory: a network of torchvision, its preprocessing, and a prompt head."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from pentimento.diffusion.discriminator_files import HEAD_FILE, HEAD_WEIGHTS
from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadRecord
from pentimento.diffusion.discriminators.torchvision_networks import MODEL_TYPE

CALIBRATION = "pentimento_calibration"
LABELS = ("generated", "real")
NETWORK_FILES = ("config.json", "model.safetensors", "preprocessor_config.json")


def halved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in their stored precision: floats rounded to half precision, computed in full."""
    return {name: tensor.half().float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def write_torchvision(
    network: nn.Module, folder: Path, record: Mapping[str, object], architecture: Mapping[str, object], size_px: int
) -> None:
    """Write the directory of one of torchvision's networks (`torchvision_networks`), `architecture` being its keys of
    the configuration, and `record` the calibration."""
    config: dict[str, object] = {"model_type": MODEL_TYPE, **architecture, "image_size": size_px}
    config |= {"label2id": {label: number for number, label in enumerate(LABELS)}, CALIBRATION: record}
    _write_json(folder / "config.json", config)
    _save_half(network.state_dict(), folder / "model.safetensors")
    write_preprocessing(folder, size_px)


def write_preprocessing(folder: Path, side: int) -> None:
    """Write the steps before the network: resize to a square, and scale to -1..1."""
    half = [0.5, 0.5, 0.5]
    processor: dict[str, object] = {"image_processor_type": "EfficientNetImageProcessor", "include_top": False}
    processor |= {"do_resize": True, "size": {"height": side, "width": side}, "resample": 3}
    processor |= {"do_center_crop": False, "do_rescale": True, "rescale_factor": 1 / 255, "rescale_offset": False}
    processor |= {"do_normalize": True, "image_mean": half, "image_std": half}
    _write_json(folder / "preprocessor_config.json", processor)


def write_head(network: HeadNetwork, record: HeadRecord, discriminator: Path, folder: Path) -> None:
    """Write a discriminator's directory, which may be `folder` itself, with a head added."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != discriminator.resolve():
        for name in NETWORK_FILES:
            shutil.copyfile(discriminator / name, folder / name)
    _save_half(network.state_dict(), folder / HEAD_WEIGHTS)
    write_record(record, folder)


def write_record(record: HeadRecord, folder: Path) -> None:
    """Write the record of the head in a discriminator's directory."""
    _write_json(folder / HEAD_FILE, record.as_json())


def _save_half(tensors: Mapping[str, Tensor], path: Path) -> None:
    halves = {n: (t.half() if t.is_floating_point() else t).contiguous().clone() for n, t in sorted(tensors.items())}
    path.write_bytes(save(halves, metadata={"format": "pt"}))


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

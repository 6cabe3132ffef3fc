"""Write a trained LoRA as fp16 safetensors that stock loaders take: diffusers' layout, and for one LoRA all three.

- `pytorch_lora_weights.safetensors`: `StableDiffusionPipeline.load_lora_weights(folder)`; alpha is in its metadata
- `kohya/<part>.safetensors`: the same loader, and everything that reads kohya's names; one alpha a module
- `peft/`: `PeftModel.from_pretrained(unet, folder / "peft")`; alpha is in `adapter_config.json`
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
from peft import LoraConfig
from safetensors.torch import save
from torch import Tensor

from zoo.train.denoiser import make_heavy
from zoo.train.loop import load_trained
from zoo.train.lora import StyledUNet

IN_EVERY_FORMAT = "lora-neon"
KOHYA_NAMES = {"lora_A": "lora_down", "lora_B": "lora_up"}
METADATA = {"format": "pt"}


def export_lora(work: Path, part: str, folder: Path) -> None:
    """Write `part` (lora-neon, lora-blueprint or lora-mosaic) from its last checkpoint in the work folder."""
    styled = load_trained(StyledUNet(make_heavy()), work / part)
    write_lora(styled, folder)
    if part == IN_EVERY_FORMAT:
        write_kohya(styled, folder / "kohya" / f"{part}.safetensors")
        write_peft(styled, folder / "peft")


def write_lora(styled: StyledUNet, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"unet.{name}": value for name, value in _halves(styled).items()}
    fields = {f"unet.{name}": value for name, value in _fields(styled.config).items()}
    # Only this key: safetensors writes several in any order, and an export must have the same bytes every time.
    metadata = {LORA_ADAPTER_METADATA_KEY: json.dumps(fields, sort_keys=True)}
    (folder / "pytorch_lora_weights.safetensors").write_bytes(save(tensors, metadata))


def write_kohya(styled: StyledUNet, path: Path) -> None:
    """Write `lora_unet_<module>.lora_down.weight`, `.lora_up.weight` and `.alpha`, with underscores for the module's
    dots."""
    tensors: dict[str, Tensor] = {}
    for name, value in _halves(styled).items():
        module, matrix, _ = name.rsplit(".", 2)
        prefix = "lora_unet_" + module.replace(".", "_")
        tensors[f"{prefix}.{KOHYA_NAMES[matrix]}.weight"] = value
        tensors[f"{prefix}.alpha"] = torch.tensor(float(styled.config.lora_alpha)).half()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save(tensors, METADATA))


def write_peft(styled: StyledUNet, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fields = _fields(styled.config) | {"inference_mode": True}
    (folder / "adapter_config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tensors = {f"base_model.model.{name}": value for name, value in _halves(styled).items()}
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, METADATA))


def _halves(styled: StyledUNet) -> dict[str, Tensor]:
    return {name: value.detach().cpu().half().contiguous() for name, value in styled.state_dict().items()}


def _fields(config: LoraConfig) -> dict[str, object]:
    """Return the configuration as JSON values, with sets in one order."""
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}

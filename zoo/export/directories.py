"""Write directories that stock diffusers and transformers load with `from_pretrained`, in fp16 safetensors.

Models that share a part share its file byte for byte, so that git stores it once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from diffusers import AutoencoderTiny, ModelMixin
from safetensors.torch import save
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer, PreTrainedConfig

TEXT_TOWER = "text_model."


def save_half(tensors: Mapping[str, Tensor], path: Path) -> None:
    halves = {n: (t.half() if t.is_floating_point() else t).contiguous().clone() for n, t in sorted(tensors.items())}
    path.write_bytes(save(halves, metadata={"format": "pt"}))


def save_shards(shards: list[dict[str, Tensor]], folder: Path) -> None:
    """Write a transformers model in several files, with the index of tensors by file."""
    names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        save_half(tensors, folder / name)
    where = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
    size = 2 * sum(tensor.numel() for tensors in shards for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_transformers_config(config: PreTrainedConfig, architecture: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"architectures": [architecture], "dtype": "float32"}  # stored as halves, computed in full
    write_json(path, content)


def save_diffusers_model(model: ModelMixin, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_config(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(model, AutoencoderTiny):
        content.pop("block_out_channels", None)  # AutoencoderTiny derives it, and warns if it is given
    write_json(path, content)
    save_half(model.state_dict(), folder / "diffusion_pytorch_model.safetensors")


def text_tensors(clip: CLIPModel) -> dict[str, Tensor]:
    """Return the text tower's tensors, under their names in every model that holds it."""
    return {n: t for n, t in clip.state_dict().items() if n.startswith(TEXT_TOWER) and "position_ids" not in n}


def save_tokenizer(tokenizer: CLIPTokenizer, folder: Path) -> None:
    """Write the vocabulary twice, for transformers 5 (tokenizer.json) and for older readers."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    source = Path(tokenizer.init_kwargs.get("name_or_path") or tokenizer.name_or_path)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name_or_path", "vocab", "merges", "is_local", "local_files_only"):
        content.pop(key, None)
    write_json(path, content)

"""Write the trained parts as stock diffusers and transformers directories: `python -m zoo.export`.

Every tensor is stored as fp16 safetensors. What the models share is byte-identical, so that git stores it once:
the autoencoder and the text tower of heavy and light, and the text tower as the first shard of the dual encoder.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderTiny, ModelMixin, UNet2DConditionModel
from safetensors.torch import save
from torch import Tensor
from transformers import CLIPModel, CLIPTokenizer, PreTrainedConfig

from zoo.cards import write_cards
from zoo.registry import WEIGHTS, write_registry
from zoo.scenes import IMAGE_SIZE
from zoo.tokenizer import load_tokenizer
from zoo.train import WORK
from zoo.train_autoencoder import make_autoencoder
from zoo.train_denoiser import make_heavy, make_light, make_scheduler
from zoo.train_dual_encoder import TowersAndHeads
from zoo.training import CHECKPOINT, load_trained

TEXT_TOWER = "text_model."


def _save_half(tensors: dict[str, Tensor], path: Path) -> None:
    halves = {n: (t.half() if t.is_floating_point() else t).contiguous().clone() for n, t in sorted(tensors.items())}
    path.write_bytes(save(halves, metadata={"format": "pt"}))


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _save_transformers_config(config: PreTrainedConfig, architecture: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"architectures": [architecture], "dtype": "float32"}  # stored as halves, computed in full
    _write_json(path, content)


def _save_diffusers_model(model: ModelMixin, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.save_config(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(model, AutoencoderTiny):
        content.pop("block_out_channels", None)  # AutoencoderTiny derives it, and warns when it is given
    _write_json(path, content)
    _save_half(model.state_dict(), folder / "diffusion_pytorch_model.safetensors")


def _text_tensors(clip: CLIPModel) -> dict[str, Tensor]:
    return {n: t for n, t in clip.state_dict().items() if n.startswith(TEXT_TOWER) and "position_ids" not in n}


def export_text_encoder(clip: CLIPModel, folder: Path) -> None:
    _save_transformers_config(clip.config.text_config, "CLIPTextModel", folder)
    _save_half(_text_tensors(clip), folder / "model.safetensors")


def export_dual_encoder(clip: CLIPModel, tokenizer: CLIPTokenizer, folder: Path) -> None:
    """Two shards: the text tower, the very file the pipelines hold, and everything else."""
    _save_transformers_config(clip.config, "CLIPModel", folder)
    text = _text_tensors(clip)
    rest = {n: t for n, t in clip.state_dict().items() if n not in text and "position_ids" not in n}
    shards = {"model-00001-of-00002.safetensors": text, "model-00002-of-00002.safetensors": rest}
    for name, tensors in shards.items():
        _save_half(tensors, folder / name)
    where = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    size = 2 * sum(t.numel() for tensors in shards.values() for t in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(where.items()))}
    _write_json(folder / "model.safetensors.index.json", index)
    export_tokenizer(tokenizer, folder)
    half = [0.5, 0.5, 0.5]
    edge = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    processor = {"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, "do_normalize": True}
    processor |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_resize": True, "resample": 3}
    processor |= {
        "size": {"shortest_edge": IMAGE_SIZE},
        "do_center_crop": True,
        "crop_size": edge,
        "image_mean": half,
        "image_std": half,
    }
    _write_json(folder / "preprocessor_config.json", processor)


def export_tokenizer(tokenizer: CLIPTokenizer, folder: Path) -> None:
    """The vocabulary twice, as transformers 5 reads it (tokenizer.json) and as everything older does."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    source = Path(tokenizer.init_kwargs.get("name_or_path") or tokenizer.name_or_path)
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(source / name, folder / name)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name_or_path", "vocab", "merges", "is_local", "local_files_only"):
        content.pop(key, None)
    _write_json(path, content)


def export_pipeline(
    clip: CLIPModel, autoencoder: AutoencoderTiny, unet: UNet2DConditionModel, tokenizer: CLIPTokenizer, folder: Path
) -> None:
    """A StableDiffusionPipeline directory without safety checker and feature extractor."""
    _save_diffusers_model(unet, folder / "unet")
    _save_diffusers_model(autoencoder, folder / "vae")
    export_text_encoder(clip, folder / "text_encoder")
    export_tokenizer(tokenizer, folder / "tokenizer")
    make_scheduler().save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.42.1",
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "DDIMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderTiny"],
    }
    _write_json(folder / "model_index.json", index)


def export_all(work: Path, weights: Path, untrained: bool = False) -> None:
    """Every part that has a checkpoint; with `untrained`, the others as they are initialised."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer(work / "tokenizer")
    parts = {
        "dual-encoder": TowersAndHeads(tokenizer),
        "autoencoder": make_autoencoder(),
        "heavy": make_heavy(),
        "light": make_light(),
    }
    for name, module in parts.items():
        if (work / name / CHECKPOINT).exists():
            load_trained(module, work / name)
        elif not untrained:
            raise SystemExit(f"{name} has no checkpoint in {work / name}: run `python -m zoo.train {name}` first")
    clip = parts["dual-encoder"].clip
    for name in ("heavy", "light"):
        export_pipeline(clip, parts["autoencoder"], parts[name], tokenizer, weights / f"tiny-{name}")
    export_dual_encoder(clip, tokenizer, weights / "tiny-clip")
    write_cards(weights)
    write_registry(weights)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.export", description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--untrained", action="store_true", help="stand in for parts that have no checkpoint yet")
    arguments = parser.parse_args()
    export_all(arguments.work, arguments.weights, arguments.untrained)


if __name__ == "__main__":
    main()

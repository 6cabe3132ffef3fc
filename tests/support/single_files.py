"""A checkpoint that diffusers wrote, turned into what model sites hand out: configurations, and all weights in one
safetensors file under the names of the original code (CompVis' latent diffusion, OpenCLIP)."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_SD3_PROJECTION = re.compile(r"(to_|add_)([qkv])(?:_proj)?(?=\.(?:weight|bias))")
_SD3_PARTS = {
    "pos_embed.proj": "x_embedder.proj",
    "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
    "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
    "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    "norm1.linear": "x_block.adaLN_modulation.1",
    "norm1_context.linear": "context_block.adaLN_modulation.1",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
    "attn.to_out.0": "x_block.attn.proj",
    "attn.to_add_out": "context_block.attn.proj",
    "ff.net.0.proj": "x_block.mlp.fc1",
    "ff.net.2": "x_block.mlp.fc2",
    "ff_context.net.0.proj": "context_block.mlp.fc1",
    "ff_context.net.2": "context_block.mlp.fc2",
}
_VAE_PARTS = {
    "conv_norm_out": "norm_out",
    "conv_shortcut": "nin_shortcut",
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
    "downsamplers.0": "downsample",
    "upsamplers.0": "upsample",
}


def merge_weights(directory: Path) -> Path:
    """Moves all weights of an SD, SDXL or SD3 checkpoint into DIRECTORY/all.safetensors."""
    merged = _renamed(directory, "vae", "first_stage_model.", _vae_name(directory))
    if (directory / "transformer").is_dir():
        merged |= _sd3_transformer(_taken(directory / "transformer"), "model.diffusion_model.")
        merged |= _sd3_texts(directory)
    elif (directory / "text_encoder_2").is_dir():
        merged |= _renamed(directory, "unet", "model.diffusion_model.", _unet_name(directory))
        merged |= _renamed(directory, "text_encoder", "conditioner.embedders.0.transformer.", _clip_name)
        merged |= _open_clip(_taken(directory / "text_encoder_2"), "conditioner.embedders.1.model.")
    else:
        merged |= _renamed(directory, "unet", "model.diffusion_model.", _unet_name(directory))
        merged |= _renamed(directory, "text_encoder", "cond_stage_model.transformer.", _clip_name)
    save_file({name: tensor.contiguous() for name, tensor in merged.items()}, directory / "all.safetensors")
    return directory


def _taken(folder: Path) -> Tensors:
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    path.unlink()
    return tensors


def _renamed(directory: Path, component: str, prefix: str, name: Callable[[str], str]) -> Tensors:
    return {prefix + name(key): tensor for key, tensor in _taken(directory / component).items()}


def _clip_name(key: str) -> str:
    return f"text_model.{key.removeprefix('text_model.')}"


def _unet_name(directory: Path) -> Callable[[str], str]:
    config = json.loads((directory / "unet" / "config.json").read_text())
    layers = config["layers_per_block"]
    attends = [block.startswith("CrossAttn") for block in config["up_block_types"]]

    def place(match: re.Match[str]) -> str:
        side, block, kind, layer = match[1], int(match[2]), match[3], int(match[4])
        if side == "down":
            index = 1 + block * (layers + 1) + (layers if kind == "downsamplers" else layer)
            return f"input_blocks.{index}." + {"resnets": "0", "attentions": "1", "downsamplers": "0.op"}[kind]
        index = block * (layers + 1) + (layers if kind == "upsamplers" else layer)
        up = f"{2 if attends[block] else 1}"
        return f"output_blocks.{index}." + {"resnets": "0", "attentions": "1", "upsamplers": up}[kind]

    def name(key: str) -> str:
        if ".resnets." in key:
            key = _replaced(key, _RESNET)
        key = re.sub(r"mid_block\.resnets\.(\d)", lambda match: f"middle_block.{2 * int(match[1])}", key)
        key = key.replace("mid_block.attentions.0", "middle_block.1")
        key = re.sub(r"(down|up)_blocks\.(\d+)\.(\w+)\.(\d+)", place, key).replace("op.conv", "op")
        stem, dot, kind = key.rpartition(".")
        return _UNET_ENDS.get(stem, stem) + dot + kind

    return name


def _vae_name(directory: Path) -> Callable[[str], str]:
    config = json.loads((directory / "vae" / "config.json").read_text())
    last = len(config["up_block_types"]) - 1

    def name(key: str) -> str:
        key = re.sub(r"mid_block\.resnets\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}", key)
        key = key.replace("mid_block.attentions.0", "mid.attn_1")
        key = re.sub(r"down_blocks\.(\d+)", r"down.\1", key)
        key = re.sub(r"up_blocks\.(\d+)", lambda match: f"up.{last - int(match[1])}", key)
        return _replaced(key.replace(".resnets.", ".block."), _VAE_PARTS)

    return name


def _replaced(key: str, names: dict[str, str]) -> str:
    for new, old in names.items():
        key = key.replace(f".{new}.", f".{old}.")
    return key


def _open_clip(tensors: Tensors, prefix: str) -> Tensors:
    inner = {key.removeprefix("text_model."): tensor for key, tensor in tensors.items()}
    merged = {
        "positional_embedding": inner["embeddings.position_embedding.weight"],
        "token_embedding.weight": inner["embeddings.token_embedding.weight"],
        "ln_final.weight": inner["final_layer_norm.weight"],
        "ln_final.bias": inner["final_layer_norm.bias"],
        "text_projection": inner["text_projection.weight"].T,
    }
    parts = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    parts["self_attn.out_proj"] = "attn.out_proj"
    for layer in sorted({key.split(".")[2] for key in inner if key.startswith("encoder.layers.")}):
        new, old = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
        for kind in ("weight", "bias"):
            merged |= {f"{old}.{theirs}.{kind}": inner[f"{new}.{ours}.{kind}"] for ours, theirs in parts.items()}
            projections = [inner[f"{new}.self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            merged[f"{old}.attn.in_proj_{kind}"] = torch.cat(projections)
    return {prefix + key: tensor for key, tensor in merged.items()}


def _sd3_texts(directory: Path) -> Tensors:
    """Kept under their names; the file has no projection for the first: it must be the identity."""
    first = _taken(directory / "text_encoder")
    projection = first.pop("text_projection.weight")
    assert torch.equal(projection, torch.eye(len(projection)))
    texts = {f"text_encoders.clip_l.transformer.{key}": tensor for key, tensor in first.items()}
    texts |= _renamed(directory, "text_encoder_2", "text_encoders.clip_g.transformer.", str)
    if (directory / "text_encoder_3").is_dir():
        texts |= _renamed(directory, "text_encoder_3", "text_encoders.t5xxl.transformer.", str)
    return texts


def _sd3_transformer(tensors: Tensors, prefix: str) -> Tensors:
    last = max(int(key.split(".")[1]) for key in tensors if key.startswith("transformer_blocks."))
    merged: Tensors = {}
    for key, tensor in tensors.items():
        if not (match := _SD3_PROJECTION.search(key)):
            old = _replaced(f".{key}", _SD3_PARTS).removeprefix(".").replace("transformer_blocks", "joint_blocks")
            merged[old.replace("pos_embed.pos_embed", "pos_embed")] = tensor
        elif match[2] == "q":
            block = "context_block" if match[1] == "add_" else "x_block"
            trio = [tensors[key.replace(match[0], match[0].replace("q", letter, 1))] for letter in "qkv"]
            stem, _, kind = key.replace("transformer_blocks", "joint_blocks").partition(f".{match[0]}")
            at, _, attention = stem.rpartition(".")
            merged[f"{at}.{block}.{attention}.qkv{kind}"] = torch.cat(trio)
    for name in ("weight", "bias"):  # the original code has shift before scale
        for stem in ("final_layer.adaLN_modulation.1", f"joint_blocks.{last}.context_block.adaLN_modulation.1"):
            scale, shift = merged[f"{stem}.{name}"].chunk(2)
            merged[f"{stem}.{name}"] = torch.cat([shift, scale])
    return {prefix + key: tensor for key, tensor in merged.items()}


def split_copy(directory: Path, target: Path) -> Path:
    """Copy a directory with its weights merged into one file."""
    return merge_weights(shutil.copytree(directory, target))

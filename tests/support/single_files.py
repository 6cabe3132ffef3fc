"""A checkpoint that diffusers wrote, turned into what model sites hand out: configurations, and all weights in one
safetensors file under the names of the original code (CompVis' latent diffusion, OpenCLIP)."""

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from pentimento.diffusion.file_layouts import LAYOUTS, FileLayout, published_layouts

Tensors = dict[str, Tensor]

_NETWORKS: dict[str, Callable[[Mapping[str, Any]], torch.nn.Module]] = {
    "UNet2DConditionModel": UNet2DConditionModel.from_config,
    "SD3Transformer2DModel": SD3Transformer2DModel.from_config,
    "FluxTransformer2DModel": FluxTransformer2DModel.from_config,
    "AutoencoderKL": AutoencoderKL.from_config,
    "CLIPTextModel": lambda config: CLIPTextModel(CLIPTextConfig(**config)),
    "CLIPTextModelWithProjection": lambda config: CLIPTextModelWithProjection(CLIPTextConfig(**config)),
}

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
_FLUX_ENDS = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "context_embedder": "txt_in",
    "x_embedder": "img_in",
    "proj_out": "final_layer.linear",
}
_FLUX_PARTS = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.norm_added_q": "txt_attn.norm.query_norm",
    "attn.norm_added_k": "txt_attn.norm.key_norm",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
    "norm.linear": "modulation.lin",
    "proj_out": "linear2",
}
# Layers that the original code has as one, in its order, by kind of block.
_FLUX_JOINED = {
    "transformer_blocks": {
        "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
        "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    },
    "single_transformer_blocks": {"linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")},
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
    merged = _renamed(directory, "vae", "first_stage_model.", vae_name(_config(directory, "vae")))
    if (directory / "transformer").is_dir():
        merged |= sd3_transformer(_taken(directory / "transformer"), "model.diffusion_model.")
        merged |= _sd3_texts(directory)
    elif (directory / "text_encoder_2").is_dir():
        merged |= _renamed(directory, "unet", "model.diffusion_model.", unet_name(_config(directory, "unet")))
        merged |= _renamed(directory, "text_encoder", "conditioner.embedders.0.transformer.", clip_name)
        merged |= open_clip(_taken(directory / "text_encoder_2"), "conditioner.embedders.1.model.")
    else:
        merged |= _renamed(directory, "unet", "model.diffusion_model.", unet_name(_config(directory, "unet")))
        merged |= _renamed(directory, "text_encoder", "cond_stage_model.transformer.", clip_name)
    save_file({name: tensor.contiguous() for name, tensor in merged.items()}, directory / "all.safetensors")
    return directory


def _taken(folder: Path) -> Tensors:
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    path.unlink()
    return tensors


def _renamed(directory: Path, component: str, prefix: str, name: Callable[[str], str]) -> Tensors:
    return {prefix + name(key): tensor for key, tensor in _taken(directory / component).items()}


def clip_name(key: str) -> str:
    """Return the original name of a tensor of CLIP's text encoder."""
    return f"text_model.{key.removeprefix('text_model.')}"


def _config(directory: Path, component: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / component / "config.json").read_text())
    return found


def unet_name(config: dict[str, Any]) -> Callable[[str], str]:
    """Return the renaming of a UNet's tensors."""
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


def vae_name(config: dict[str, Any]) -> Callable[[str], str]:
    """Return the renaming of an autoencoder's tensors."""
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


def open_clip(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors of a text encoder under OpenCLIP's names."""
    inner = {key.removeprefix("text_model."): tensor for key, tensor in tensors.items()}
    merged = {
        "positional_embedding": inner["embeddings.position_embedding.weight"],
        "token_embedding.weight": inner["embeddings.token_embedding.weight"],
        "ln_final.weight": inner["final_layer_norm.weight"],
        "ln_final.bias": inner["final_layer_norm.bias"],
    }
    if "text_projection.weight" in inner:
        merged["text_projection"] = inner["text_projection.weight"].T
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


def sd3_transformer(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors of Stable Diffusion 3's transformer under their original names."""
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


def flux_transformer(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors of FLUX's transformer under their original names."""
    merged: Tensors = {}
    for key, tensor in tensors.items():
        stem, _, kind = key.rpartition(".")
        if stem == "norm_out.linear":  # the original code has shift before scale
            scale, shift = tensor.chunk(2)
            merged[f"final_layer.adaLN_modulation.1.{kind}"] = torch.cat([shift, scale])
        elif stem in _FLUX_ENDS:
            merged[f"{_FLUX_ENDS[stem]}.{kind}"] = tensor
        else:
            merged |= _flux_layer(tensors, stem, kind)
    return {prefix + key: tensor for key, tensor in merged.items()}


def _flux_layer(tensors: Tensors, stem: str, kind: str) -> Tensors:
    blocks, number, part = stem.split(".", 2)
    place = f"{'single_blocks' if blocks.startswith('single') else 'double_blocks'}.{number}"
    for old, parts in _FLUX_JOINED[blocks].items():
        if part in parts:
            joined = [tensors[f"{blocks}.{number}.{one}.{kind}"] for one in parts]
            return {f"{place}.{old}.{kind}": torch.cat(joined)}
    if part in ("attn.norm_q", "attn.norm_k"):
        end = "query_norm" if part.endswith("q") else "key_norm"
        return {
            f"{place}.{'norm' if blocks.startswith('single') else 'img_attn.norm'}.{end}.scale": tensors[
                f"{stem}.{kind}"
            ]
        }
    end = "scale" if part.startswith("attn.norm") else kind
    return {f"{place}.{_FLUX_PARTS[part]}.{end}": tensors[f"{stem}.{kind}"]}


def split_copy(directory: Path, target: Path) -> Path:
    """Copy a directory with its weights merged into one file."""
    return merge_weights(shutil.copytree(directory, target))


def lone_file(directory: Path, target: Path) -> Path:
    """Copy a checkpoint as one file, TARGET.safetensors, and its configurations and words as the folders of TARGET."""
    split_copy(directory, target)
    return (target / "all.safetensors").rename(target.with_name(f"{target.name}.safetensors"))


def write_sparse(file: Path, shapes: Mapping[str, Sequence[int]], **metadata: str) -> Path:
    """Write a safetensors file of half precision zeros that takes no space on the disk."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    return file


def published_networks(stem: str) -> dict[str, torch.nn.Module]:
    """Return the networks of a published layout without memory, by component; T5 is left out."""
    configs = layout_of(stem).configs
    networks = {}
    with torch.device("meta"):
        for name, kind in layout_of(stem).index.items():
            if isinstance(kind, list) and kind[1] in _NETWORKS:
                networks[name] = _NETWORKS[kind[1]](configs[f"{name}/config.json"])
    return networks


def layout_of(stem: str) -> FileLayout:
    """Return a published layout by the name of its file."""
    return dict(zip(sorted(path.stem for path in LAYOUTS.glob("*.json")), published_layouts(), strict=True))[stem]


def original_tensors_of(stem: str, networks: Mapping[str, torch.nn.Module]) -> Tensors:
    """Return the tensors of the networks of a layout under their original names."""
    keys, configs = layout_of(stem).keys, layout_of(stem).configs
    found: Tensors = {}
    for name, network in networks.items():
        tensors, prefix = dict(network.state_dict()), keys[name]
        if name == "unet":
            rename = unet_name(configs["unet/config.json"])
        elif name == "vae":
            rename = vae_name(configs["vae/config.json"])
        elif name == "transformer":
            rename_all = flux_transformer if stem.startswith("flux") else sd3_transformer
            found |= rename_all(tensors, prefix)
            continue
        elif prefix.endswith(".model."):
            found |= open_clip(tensors, prefix)
            continue
        else:
            rename = clip_name
        found |= {prefix + rename(key): tensor for key, tensor in tensors.items()}
    return found

"""Damage a copy of a checkpoint: files, indexes and configurations that loading must reject."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from lab.fixtures.checkpoints import write_flow_checkpoint, write_xl_checkpoint
from tests.support.text_files import edit_json

INDEX, UNET_CONFIG, TRANSFORMER = "model_index.json", "unet/config.json", "transformer/config.json"
SCHEDULER, TOKENS = "scheduler/scheduler_config.json", "tokenizer/tokenizer_config.json"
UNET, TEXT, CLIP = (
    "unet/diffusion_pytorch_model.safetensors",
    "text_encoder/model.safetensors",
    "text_encoder/config.json",
)
Damage = Callable[[Path], object]


class Canary:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def canary_of(model: Path) -> Canary:
    return Canary(model.parent / "canary")


def edited(name: str, **changes: Any) -> Damage:
    return lambda model: edit_json(model / name, **changes)


def written(name: str, content: bytes) -> Damage:
    return lambda model: (model / name).write_bytes(content)


def linked(name: str, folder: str) -> Damage:
    """Move a file or component to a folder next to the model, and link to it."""

    def link(model: Path) -> None:
        target = model.parent / folder / Path(name).name
        target.parent.mkdir(parents=True, exist_ok=True)
        (model / name).rename(target)
        (model / name).symlink_to(target)

    return link


def index(directory: Path, weights: str, name: str) -> None:
    """Write an index next to `weights` that says its tensors lie in `name`."""
    path = directory / weights
    length = int.from_bytes(path.read_bytes()[:8], "little")
    tensors = [key for key in json.loads(path.read_bytes()[8 : 8 + length]) if key != "__metadata__"]
    document = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
    path.with_name(f"{path.name}.index.json").write_text(json.dumps(document))


def shard_is_a_pickle(model: Path) -> None:
    index(model, UNET, "evil.bin")
    (model / "unet" / "evil.bin").write_bytes(pickle.dumps({}))


def shard_lies_outside(model: Path) -> None:
    shutil.copy(model / TEXT, model.parent / "outside.safetensors")
    index(model, TEXT, "../../outside.safetensors")


def variant_index_lies_outside(model: Path) -> None:
    index(model, TEXT, "../../outside.safetensors")
    folder = model / "text_encoder"
    (folder / "model.safetensors.index.json").rename(folder / "model.safetensors.index.fp16.json")


def lengthen_header(model: Path) -> None:
    path = model / UNET
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def lie_about_a_shape(model: Path) -> None:
    data = (model / UNET).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["conv_in.weight"]["shape"][0] += 1
    text = json.dumps(header).encode()
    (model / UNET).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def lack_a_tensor(model: Path) -> None:
    tensors = load_file(model / UNET)
    del tensors["conv_in.weight"]
    save_file(tensors, model / UNET)


def statistics_of(variance: float | None) -> Damage:
    """Set the first variance of an autoencoder's latents; None: the file has no statistics."""

    def damage(model: Path) -> None:
        path = model / "vae/diffusion_pytorch_model.safetensors"
        tensors = load_file(path)
        if variance is None:
            del tensors["bn.running_mean"], tensors["bn.running_var"]
        else:
            tensors["bn.running_var"][0] = variance
        save_file(tensors, path)

    return damage


def put_part_of(model: Path, other: Path, part: str) -> None:
    shutil.rmtree(model / part)
    shutil.copytree(other / part, model / part)


def unet_of_sdxl(model: Path) -> None:
    put_part_of(model, write_xl_checkpoint(model.parent / "xl"), "unet")
    edit_json(model / UNET_CONFIG, addition_embed_type=None, projection_class_embeddings_input_dim=None)


def transformer_with(**changes: Any) -> Damage:
    return lambda model: put_part_of(
        model, write_flow_checkpoint(model.parent / "other", max_sequence_length=3, **changes), "transformer"
    )


def another(write: Callable[..., Path], **changes: Any) -> Damage:
    """Put in the transformer of another checkpoint of the family."""
    return lambda model: put_part_of(model, write(model.parent / "other", **changes), "transformer")


def nested_text_config(**changes: Any) -> Damage:
    def damage(model: Path) -> None:
        path = model / "text_encoder/config.json"
        edit_json(path, text_config={**json.loads(path.read_text())["text_config"], **changes})

    return damage


def t5_of_another_width(model: Path) -> None:
    write_flow_checkpoint(model, t5=True, max_sequence_length=3)
    transformer_with(joint_attention_dim=48)(model)

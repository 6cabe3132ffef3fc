"""Checkpoints made to reach beyond themselves: each is refused in one line that names the file, or loads without what
was planted. Nothing is opened that was not judged."""

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pentimento.diffusion.checkpoint import BadCheckpoint, check_inside, digest_directory
from pentimento.diffusion.families import load_model
from tests.support.text_files import edit_json

ROOT = Path(__file__).parents[3]
UNET = "unet/diffusion_pytorch_model.safetensors"
TEXT = "text_encoder/model.safetensors"


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "model")


def index(directory: Path, weights: str, name: str) -> None:
    """An index beside `weights` that says its tensors lie in `name`."""
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


def shard_is_absent(model: Path) -> None:
    index(model, TEXT, "other.safetensors")


def index_names_other_tensors(model: Path) -> None:
    path = model / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"evil": "diffusion_pytorch_model.safetensors"}}))


def index_without_a_map(model: Path) -> None:
    (model / "unet" / "diffusion_pytorch_model.safetensors.index.json").write_text('{"weight_map": ["a"]}')


def variant_index_lies_outside(model: Path) -> None:
    index(model, TEXT, "../../outside.safetensors")
    folder = model / "text_encoder"
    (folder / "model.safetensors.index.json").rename(folder / "model.safetensors.index.fp16.json")


def linked(model: Path, name: str, folder: str) -> None:
    target = model.parent / folder / Path(name).name
    target.parent.mkdir(parents=True, exist_ok=True)
    (model / name).rename(target)
    (model / name).symlink_to(target)


def link_to_strange_blobs(model: Path) -> None:
    linked(model, UNET, "blobs")


def config_is_a_link(model: Path) -> None:
    linked(model, "vae/config.json", "elsewhere")


def index_is_a_link(model: Path) -> None:
    linked(model, "model_index.json", "elsewhere")


def component_is_a_link(model: Path) -> None:
    (model / "vae").rename(model.parent / "vae")
    (model / "vae").symlink_to(model.parent / "vae")


def deep(name: str) -> Callable[[Path], None]:
    def nest(model: Path) -> None:
        (model / name).write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")

    return nest


def deep_header(model: Path) -> None:
    header = b"[" * 200_000
    (model / UNET).write_bytes(len(header).to_bytes(8, "little") + header)


def changed(name: str, **changes: Any) -> Callable[[Path], None]:
    return lambda model: edit_json(model / name, **changes)


SCHEDULER, CLIP = "scheduler/scheduler_config.json", "text_encoder/config.json"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a shard that is a pickle": (shard_is_a_pickle, r"unet/.*index\.json: names 'evil\.bin'"),
    "a shard outside": (shard_lies_outside, r"text_encoder/.*index\.json: names '\.\./\.\./outside"),
    "a variant's shard outside": (variant_index_lies_outside, r"index\.fp16\.json: names '\.\./\.\./outside"),
    "a shard that is absent": (shard_is_absent, r"index\.json: names 'other\.safetensors'"),
    "an index of other tensors": (index_names_other_tensors, r"index\.json: names other tensors"),
    "an index without a map": (index_without_a_map, r"index\.json: must map"),
    "weights in strange blobs": (link_to_strange_blobs, r"diffusion_pytorch_model\.safetensors: leads out"),
    "a configuration elsewhere": (config_is_a_link, r"vae/config\.json: leads out"),
    "an index elsewhere": (index_is_a_link, r"model_index\.json: leads out"),
    "a component elsewhere": (component_is_a_link, r"vae/.*: leads out"),
    "a deep index": (deep("model_index.json"), r"model_index\.json: nested too deeply"),
    "a deep configuration": (deep("unet/config.json"), r"unet/config\.json: nested too deeply"),
    "a deep scheduler": (deep(SCHEDULER), r"scheduler_config\.json: nested too deeply"),
    "a deep tokenizer": (deep("tokenizer/tokenizer_config.json"), r"tokenizer_config\.json: nested too deeply"),
    "a deep header": (deep_header, r"diffusion_pytorch_model\.safetensors: not a safetensors file"),
    "10^12 timesteps": (changed(SCHEDULER, num_train_timesteps=10**12), r"num_train_timesteps=1000000000000 is not"),
    "timesteps in words": (changed(SCHEDULER, num_train_timesteps="many"), r"num_train_timesteps='many'"),
    "a beta in words": (changed(SCHEDULER, beta_start="small"), r"scheduler_config\.json: a value is of the wrong"),
    "10^9 layers": (changed(CLIP, num_hidden_layers=10**9), r"text_encoder/config\.json: num_hidden_layers=1000000000"),
    "10^9 wide": (changed(CLIP, hidden_size=10**9), r"text_encoder/config\.json: hidden_size=1000000000"),
    "10^9 blocks": (changed("unet/config.json", layers_per_block=10**9), r"unet/config\.json: layers_per_block="),
    "10^9 tokens": (
        changed("tokenizer/tokenizer_config.json", model_max_length=10**9),
        r"tokenizer: model_max_length=1000000000",
    ),
}


@pytest.mark.parametrize(("poison", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_it_is_refused_in_one_line(copy: Path, poison: Callable[[Path], None], named: str) -> None:
    poison(copy)

    with pytest.raises(BadCheckpoint, match=named) as refused:
        load_model(copy, torch.device("cpu"), torch.float32)
    assert "\n" not in refused.value.message


def planted(model: Path) -> None:
    """A checkpoint that loads, with files in it that nothing may open."""
    for name in ("adapter_config.json", "generation_config.json", "quantization_config.json"):
        (model / "text_encoder" / name).write_text("{}")
    edit_json(
        model / CLIP,
        attn_implementation="kernels-community/evil",
        quantization_config={"quant_method": "bitsandbytes"},
        auto_map={"AutoModel": "evil--evil.Evil"},
    )
    edit_json(
        model / "tokenizer/tokenizer_config.json", auto_map={"AutoTokenizer": "evil.Evil"}, tokenizer_file="/evil"
    )
    for folder in ("unet", "text_encoder"):
        (model / folder / "pytorch_model.bin").write_bytes(b"evil")


@pytest.fixture(scope="module")
def opened(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Callable[[Path], None], Any]:
    """What one process opened of a checkpoint, by how that was poisoned."""
    models = {}
    for poison in (planted, shard_is_a_pickle, shard_lies_outside):
        models[poison] = shutil.copytree(checkpoint, tmp_path_factory.mktemp("poisoned") / "model")
        poison(models[poison])
    command = [sys.executable, "-m", "tests.unit.diffusion.opened_files", *map(str, models.values())]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=True)
    return dict(zip(models, map(json.loads, outcome.stdout.splitlines()), strict=True))


@pytest.mark.slow
def test_only_files_that_were_digested_are_opened(opened: dict[Callable[[Path], None], Any]) -> None:
    found = opened[planted]

    assert found["refused"] == ""
    assert {"model/text_encoder/config.json", f"model/{UNET}"} <= set(found["digested"])
    assert found["strange"] == []


@pytest.mark.parametrize("poison", [shard_is_a_pickle, shard_lies_outside])
def test_what_an_index_names_outside_is_never_opened(
    opened: dict[Callable[[Path], None], Any], poison: Callable[[Path], None]
) -> None:
    found = opened[poison]

    assert "names" in found["refused"]
    assert not [name for name in found["strange"] if "evil" in name or "outside" in name]


def hub_cache(tmp_path: Path, blobs: Path) -> tuple[Path, Path]:
    """A snapshot of the hub's cache, and a file of it that is a link into `blobs`."""
    snapshot = tmp_path / "models--me--mine" / "snapshots" / "0123abcd"
    (snapshot / "unet").mkdir(parents=True)
    blobs.mkdir(parents=True, exist_ok=True)
    (blobs / "f00d").write_text("{}")
    (snapshot / "unet" / "config.json").symlink_to(blobs / "f00d")
    return snapshot, snapshot / "unet" / "config.json"


def test_the_hubs_own_cache_is_followed(tmp_path: Path) -> None:
    snapshot, file = hub_cache(tmp_path, tmp_path / "models--me--mine" / "blobs")

    check_inside(snapshot, [file])


@pytest.mark.parametrize("blobs", ["models--you--yours/blobs", "blobs", "models--me--mine/blobs/deeper/blobs"])
def test_no_other_cache_is_followed(tmp_path: Path, blobs: str) -> None:
    snapshot, file = hub_cache(tmp_path, tmp_path / blobs)

    with pytest.raises(BadCheckpoint, match="leads out"):
        check_inside(snapshot, [file])


def test_the_digest_is_still_that_of_the_whole_directory(copy: Path) -> None:
    assert load_model(copy, torch.device("cpu"), torch.float32).info.model_digest == digest_directory(copy)

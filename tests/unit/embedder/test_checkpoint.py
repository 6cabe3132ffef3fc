"""Directories that must not be served stop the start with one clear line."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from services.embedder.checkpoint import open_encoder
from services.embedder.model import open_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def directory(encoder_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder_directory, tmp_path / "encoder"))


def change_config(directory: Path, section: str | None, **values: object) -> None:
    path = directory / "config.json"
    document = json.loads(path.read_text())
    (document if section is None else document[section]).update(values)
    path.write_text(json.dumps(document))


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS)


class Canary:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)


def test_a_renamed_pickle_is_refused_and_never_opened(directory):
    canary = directory / "canary"
    (directory / WEIGHTS).write_bytes(pickle.dumps(Canary(canary)))

    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: not a safetensors file"):
        open_encoder(directory)

    assert not canary.exists()


def test_a_directory_with_pickles_alone_is_refused(directory):
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")

    with pytest.raises(BadCheckpoint, match="holds no safetensors file"):
        open_encoder(directory)


def test_a_truncated_weight_file_is_refused(directory):
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[: len(whole) // 2])

    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        open_encoder(directory)


def test_a_missing_tensor_is_named(directory):
    change_weights(directory, lambda tensors: tensors.pop("text_projection.weight"))

    with pytest.raises(BadCheckpoint, match=r"tensor text_projection\.weight is missing"):
        open_encoder(directory)


def test_a_tensor_of_another_shape_is_named(directory):
    change_weights(directory, lambda tensors: tensors.update({"visual_projection.weight": torch.zeros(3, 3)}))

    with pytest.raises(BadCheckpoint, match=r"visual_projection\.weight must have shape \(16, 48\), got \(3, 3\)"):
        open_encoder(directory)


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_weights_that_give_no_unit_vector_are_refused(directory, value):
    change_weights(directory, lambda tensors: tensors["text_projection.weight"].fill_(value))

    with pytest.raises(BadCheckpoint, match="no usable embedding"):
        open_model(directory)


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (None, {"model_type": "siglip"}, "model_type must be 'clip'"),
        ("text_config", {"hidden_size": -1}, "hidden_size must be between"),
        ("text_config", {"hidden_size": 2**40}, "hidden_size must be between"),
        ("text_config", {"num_attention_heads": 5}, "multiple of num_attention_heads"),
        ("vision_config", {"patch_size": 0}, "patch_size must be between"),
        ("vision_config", {"layer_norm_eps": "tiny"}, "layer_norm_eps must be between"),
        ("text_config", {"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
        ("text_config", {"vocab_size": 10}, "token_embedding"),
        ("text_config", {"eos_token_id": 5}, "tokenizer does not fit"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(directory, section, values, message):
    change_config(directory, section, **values)

    with pytest.raises(BadCheckpoint, match=message):
        open_model(directory)


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_missing_or_broken_file_is_one_line_with_its_directory(directory, name, content):
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)

    with pytest.raises(BadCheckpoint) as refusal:
        open_model(directory)

    assert str(directory) in refusal.value.message
    assert "\n" not in refusal.value.message


def test_the_digest_covers_every_file_that_changes_an_embedding(directory):
    digests = [open_encoder(directory).digest]
    change_config(directory, None, comment="x")
    digests.append(open_encoder(directory).digest)
    for name in ("tokenizer.json", "preprocessor_config.json"):
        (directory / name).write_text((directory / name).read_text() + " ")
        digests.append(open_encoder(directory).digest)
    change_weights(directory, lambda tensors: tensors["text_projection.weight"].mul_(2))
    digests.append(open_encoder(directory).digest)

    assert len(set(digests)) == len(digests)


def test_half_precision_is_computed_in_full(directory):
    whole = open_model(directory)
    change_weights(directory, lambda tensors: tensors.update({name: one.half() for name, one in tensors.items()}))

    checkpoint = open_encoder(directory)

    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {torch.float32}
    with torch.inference_mode():
        halved, full = (model.embed_texts(["a red circle"])[0] for model in (open_model(directory), whole))
    difference = torch.frombuffer(bytearray(halved), dtype=torch.float32) - torch.frombuffer(
        bytearray(full), dtype=torch.float32
    )
    assert difference.abs().max() < 1e-2


def test_a_file_that_is_not_read_changes_no_digest(directory):
    before = open_encoder(directory).digest

    (directory / "README.md").write_text("# A card")

    assert open_encoder(directory).digest == before

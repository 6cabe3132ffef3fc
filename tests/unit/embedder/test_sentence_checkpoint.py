"""Sentence-transformers directories that must not be served stop the start with one clear line."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.errors import FailedPrecondition
from services.embedder.model import open_model
from services.embedder.sentence_checkpoint import Pooling, open_sentence_encoder
from tests.support.encoders import SENTENCE_TOKENS, write_sentence_encoder


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_encoder(tmp_path_factory.mktemp("sentences"))


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "encoder"))


def change(directory: Path, name: str, **values: object) -> None:
    path = directory / name
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **values}))


def test_a_directory_gives_its_name_limits_and_pooling(directory):
    checkpoint = open_sentence_encoder(directory)

    assert checkpoint.name == "encoder"
    assert checkpoint.config.max_tokens == SENTENCE_TOKENS
    assert checkpoint.config.pooling is Pooling.MEAN


def test_a_directory_inside_a_package_is_named_after_the_package(directory):
    (directory.parent / "__init__.py").touch()

    assert open_sentence_encoder(directory).name == directory.parent.name


def test_without_a_limit_of_its_own_the_positions_are_the_limit(directory):
    (directory / "sentence_bert_config.json").unlink()

    assert open_sentence_encoder(directory).config.max_tokens == 40


def test_pickles_alone_are_refused(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")

    with pytest.raises(BadCheckpoint, match="holds no safetensors file"):
        open_model(directory)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("config.json", {"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
        ("config.json", {"hidden_size": 0}, "hidden_size must be between"),
        ("config.json", {"num_attention_heads": 5}, "multiple of num_attention_heads"),
        ("config.json", {"layer_norm_eps": 2.0}, "layer_norm_eps must be between"),
        ("config.json", {"position_embedding_type": "relative_key"}, "absolute positions"),
        ("config.json", {"is_decoder": True}, "must be an encoder"),
        ("config.json", {"vocab_size": 10}, "word_embeddings"),
        ("config.json", {"model_type": "roberta"}, "model_type must be 'clip' or 'bert', got 'roberta'"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be between"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case must be false"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "must be mean or cls, got"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "must be mean or cls, got"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "must be mean or cls, got"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name must be null"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(directory, name, values, message):
    change(directory, name, **values)

    with pytest.raises(BadCheckpoint, match=message):
        open_model(directory)


def modules_with(*kinds: str, path: str = "1_Pooling") -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": path}
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)} for kind in kinds]


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({}, "must hold a list"),
        (["Pooling"], "must hold a list"),
        (modules_with("Transformer", "Pooling", "Dense"), "modules must be"),
        (modules_with("Pooling", "Transformer"), "modules must be"),
        (modules_with("Transformer", "Pooling", path=""), "must be a folder"),
        (modules_with("Transformer", "Pooling", path="../outside"), "leads out of the checkpoint"),
    ],
)
def test_modules_that_are_not_built_here_are_refused(directory, modules, message):
    outside = directory.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (directory / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(BadCheckpoint, match=message):
        open_model(directory)


@pytest.mark.parametrize("name", ["modules.json", "tokenizer.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [None, "{"])
def test_a_missing_or_broken_file_is_one_line_with_its_directory(directory, name, content):
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)

    with pytest.raises(BadCheckpoint) as refusal:
        open_model(directory)

    assert str(directory) in refusal.value.message
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_weights_that_give_no_unit_vector_are_refused(directory, value):
    tensors = load_file(directory / "model.safetensors")
    for part in ("weight", "bias"):
        tensors[f"encoder.layer.1.output.LayerNorm.{part}"].fill_(value)
    save_file(tensors, directory / "model.safetensors")

    with pytest.raises(BadCheckpoint, match="no usable embedding"):
        open_model(directory)


def test_the_digest_covers_every_file_that_changes_an_embedding(directory):
    digests = [open_sentence_encoder(directory).digest]
    change(directory, "config.json", comment="x")
    digests.append(open_sentence_encoder(directory).digest)
    for name in ("tokenizer.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json"):
        (directory / name).write_text((directory / name).read_text() + " ")
        digests.append(open_sentence_encoder(directory).digest)
    tensors = load_file(directory / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] += 1
    save_file(tensors, directory / "model.safetensors")
    digests.append(open_sentence_encoder(directory).digest)

    assert len(set(digests)) == len(digests)


def test_texts_are_embedded_alike_alone_and_beside_longer_ones(directory):
    model = open_model(directory)
    texts = ["a red circle", "", "a blue square above the red circle, and 2 circles on 1 square."]
    with torch.inference_mode():
        together = model.embed_texts(texts)
        alone = [model.embed_texts([text])[0] for text in texts]

    for one, other in zip(together, alone, strict=True):
        difference = torch.frombuffer(bytearray(one), dtype=torch.float32) - torch.frombuffer(
            bytearray(other), dtype=torch.float32
        )
        assert difference.abs().max() < 1e-6


def test_images_are_refused_by_name(directory):
    with pytest.raises(FailedPrecondition, match="embeds texts only") as refusal:
        open_model(directory).image_side()

    assert refusal.value.reason == "NO_IMAGE_TOWER"

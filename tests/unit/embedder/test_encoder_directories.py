"""Directories of both kinds of encoders: a directory that must not be served stops the start with one clear line."""

import json
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.domain.errors import FailedPrecondition
from services.embedder.dual_encoder import open_encoder
from services.embedder.model import open_model
from services.embedder.sentence_encoder import Pooling, open_sentence_encoder
from services.embedder.tower import EncoderCheckpoint
from tests.support.encoders import SENTENCE_TOKENS, write_sentence_encoder
from tests.support.refusals import wrong_refusals

WEIGHTS = "model.safetensors"
CLIP, SENTENCE = "clip", "sentence"
# A tensor of each kind that changes every embedding.
LAST = {
    CLIP: ("text_projection.weight",),
    SENTENCE: tuple(f"encoder.layer.1.output.LayerNorm.{p}" for p in ("weight", "bias")),
}


@pytest.fixture(scope="session")
def sentence_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_encoder(tmp_path_factory.mktemp("sentences"))


@pytest.fixture
def clip(encoder_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder_directory, tmp_path / "encoder"))


@pytest.fixture
def sentence(sentence_directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sentence_directory, tmp_path / "encoder"))


@pytest.fixture(params=[CLIP, SENTENCE])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(kind: str, request: pytest.FixtureRequest) -> Path:
    """Return a directory of the kind, which the test may change."""
    return Path(request.getfixturevalue(kind))


def opened(directory: Path) -> EncoderCheckpoint[Any]:
    is_clip = json.loads((directory / "config.json").read_text())["model_type"] == CLIP
    return open_encoder(directory) if is_clip else open_sentence_encoder(directory)


def copy_of(directory: Path) -> Path:
    """Return a new copy next to the directory."""
    return Path(
        shutil.copytree(directory, Path(tempfile.mkdtemp(dir=directory.parent, prefix=directory.name)) / "encoder")
    )


def change(directory: Path, name: str, section: str | None = None, **values: object) -> None:
    path = directory / name
    document = json.loads(path.read_text()) if path.exists() else {}
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


def test_open_renamed_pickle_is_refused_and_not_loaded(directory):
    canary = directory / "canary"
    (directory / WEIGHTS).write_bytes(pickle.dumps(Canary(canary)))

    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: not a safetensors file"):
        open_model(directory)

    assert not canary.exists()


def test_open_directory_with_pickles_alone_is_refused(directory):
    (directory / WEIGHTS).rename(directory / "pytorch_model.bin")

    with pytest.raises(BadCheckpoint, match="holds no safetensors file"):
        open_model(directory)


def test_open_truncated_weight_file_is_refused(directory):
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[: len(whole) // 2])

    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        open_model(directory)


def test_open_missing_tensor_is_named(directory, kind):
    change_weights(directory, lambda tensors: tensors.pop(LAST[kind][0]))

    with pytest.raises(BadCheckpoint, match=rf"tensor {LAST[kind][0]} is missing"):
        open_model(directory)


def test_open_tensor_of_another_shape_is_named(clip):
    change_weights(clip, lambda tensors: tensors.update({"visual_projection.weight": torch.zeros(3, 3)}))

    with pytest.raises(BadCheckpoint, match=r"visual_projection\.weight must have shape \(16, 48\), got \(3, 3\)"):
        open_encoder(clip)


@pytest.mark.parametrize("value", [float("nan"), 0.0])
def test_open_weights_without_unit_vectors_are_refused(directory, kind, value):
    change_weights(directory, lambda tensors: [tensors[name].fill_(value) for name in LAST[kind]])

    with pytest.raises(BadCheckpoint, match="no usable embedding"):
        open_model(directory)


UNUSABLE = [
    (CLIP, "config.json", "text_config", {"hidden_size": -1}, "hidden_size must be between"),
    (CLIP, "config.json", "text_config", {"hidden_size": 2**40}, "hidden_size must be between"),
    (CLIP, "config.json", "text_config", {"num_attention_heads": 5}, "multiple of num_attention_heads"),
    (CLIP, "config.json", "vision_config", {"patch_size": 0}, "patch_size must be between"),
    (CLIP, "config.json", "vision_config", {"layer_norm_eps": "tiny"}, "layer_norm_eps must be between"),
    (CLIP, "config.json", "text_config", {"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
    (CLIP, "config.json", "text_config", {"vocab_size": 10}, "token_embedding"),
    (CLIP, "config.json", "text_config", {"eos_token_id": 5}, "tokenizer does not fit"),
    (SENTENCE, "config.json", None, {"hidden_act": "swish"}, "hidden_act 'swish' is not one of"),
    (SENTENCE, "config.json", None, {"hidden_size": 0}, "hidden_size must be between"),
    (SENTENCE, "config.json", None, {"num_attention_heads": 5}, "multiple of num_attention_heads"),
    (SENTENCE, "config.json", None, {"layer_norm_eps": 2.0}, "layer_norm_eps must be between"),
    (SENTENCE, "config.json", None, {"position_embedding_type": "relative_key"}, "absolute positions"),
    (SENTENCE, "config.json", None, {"is_decoder": True}, "must be an encoder"),
    (SENTENCE, "config.json", None, {"vocab_size": 10}, "word_embeddings"),
    (SENTENCE, "config.json", None, {"model_type": "roberta"}, "model_type must be one of .*'bert', got 'roberta'"),
    (SENTENCE, "sentence_bert_config.json", None, {"max_seq_length": 0}, "max_seq_length must be between"),
    (SENTENCE, "sentence_bert_config.json", None, {"do_lower_case": True}, "do_lower_case must be false"),
    (SENTENCE, "1_Pooling/config.json", None, {"pooling_mode_cls_token": True}, "must be mean or cls, got"),
    (SENTENCE, "1_Pooling/config.json", None, {"pooling_mode": "lasttoken"}, "must be mean or cls, got"),
    (SENTENCE, "1_Pooling/config.json", None, {"pooling_mode_mean_tokens": False}, "must be mean or cls, got"),
    (
        SENTENCE,
        "config_sentence_transformers.json",
        None,
        {"default_prompt_name": "query"},
        "default_prompt_name must be null",
    ),
]


@pytest.mark.parametrize("kind", [CLIP, SENTENCE])
def test_open_unusable_configuration_is_refused(directory, kind):
    def opened_with(name, section, values):
        copy = copy_of(directory)
        change(copy, name, section, **values)
        open_model(copy)

    rows = [row for owner, *row in UNUSABLE if owner == kind]

    assert wrong_refusals(BadCheckpoint, opened_with, rows) == []


def modules_with(*kinds: str, path: str = "1_Pooling") -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": path}
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, kind)} for kind in kinds]


MODULES = [
    ({}, "must hold a list"),
    (["Pooling"], "must hold a list"),
    (modules_with("Transformer", "Pooling", "Dense"), "modules must be"),
    (modules_with("Pooling", "Transformer"), "modules must be"),
    (modules_with("Transformer", "Pooling", path=""), "must be a folder"),
    (modules_with("Transformer", "Pooling", path="../outside"), "leads out of the checkpoint"),
]


def test_open_unknown_sentence_modules_are_refused(sentence):
    outside = sentence.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))

    def opened_with(modules):
        (sentence / "modules.json").write_text(json.dumps(modules))
        open_model(sentence)

    assert wrong_refusals(BadCheckpoint, opened_with, MODULES) == []


@pytest.mark.parametrize(
    ("kind", "names", "contents"),
    [
        (CLIP, ("config.json", "preprocessor_config.json", "tokenizer.json"), (None, "{", "[]")),
        (SENTENCE, ("modules.json", "tokenizer.json", "1_Pooling/config.json"), (None, "{")),
    ],
)
def test_open_missing_or_broken_file_is_one_line(directory, names, contents):
    def opened_with(name, content):
        copy = copy_of(directory)
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_text(content)
        open_model(copy)

    line = rf"\A.*{re.escape(str(directory))}.*\Z"
    rows = [(name, content, line) for name in names for content in contents]

    assert wrong_refusals(BadCheckpoint, opened_with, rows) == []


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (CLIP, ("tokenizer.json", "preprocessor_config.json")),
        (SENTENCE, ("tokenizer.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json")),
    ],
)
def test_digest_covers_every_file_that_changes_an_embedding(directory, kind, names):
    digests = [opened(directory).digest]
    change(directory, "config.json", comment="x")
    digests.append(opened(directory).digest)
    for name in names:
        (directory / name).write_text((directory / name).read_text() + " ")
        digests.append(opened(directory).digest)
    change_weights(directory, lambda tensors: tensors[LAST[kind][0]].add_(1))
    digests.append(opened(directory).digest)

    assert len(set(digests)) == len(digests)


def test_digest_leaves_out_files_that_are_not_read(directory):
    before = opened(directory).digest

    (directory / "README.md").write_text("# A card")

    assert opened(directory).digest == before


def greatest_difference(one: bytes, other: bytes) -> float:
    tensors = [torch.frombuffer(bytearray(each), dtype=torch.float32) for each in (one, other)]
    return float((tensors[0] - tensors[1]).abs().max())


def test_half_precision_is_computed_in_full(directory):
    whole = open_model(directory)
    change_weights(directory, lambda tensors: tensors.update({name: one.half() for name, one in tensors.items()}))

    assert {tensor.dtype for tensor in opened(directory).tensors.values()} == {torch.float32}
    with torch.inference_mode():
        halved, full = (model.embed_texts(["a red circle"])[0] for model in (open_model(directory), whole))
    assert greatest_difference(halved, full) < 1e-2


def test_sentence_directory_gives_its_name_limits_and_pooling(sentence):
    checkpoint = open_sentence_encoder(sentence)

    assert checkpoint.name == "encoder"
    assert checkpoint.config.max_tokens == SENTENCE_TOKENS
    assert checkpoint.config.pooling is Pooling.MEAN


def test_sentence_directory_inside_a_package_has_its_name(sentence):
    (sentence.parent / "__init__.py").touch()

    assert open_sentence_encoder(sentence).name == sentence.parent.name


def test_sentence_directory_without_a_limit_takes_its_positions(sentence):
    (sentence / "sentence_bert_config.json").unlink()

    assert open_sentence_encoder(sentence).config.max_tokens == 40


def test_sentences_are_embedded_equally_alone_and_in_a_batch(sentence):
    model = open_model(sentence)
    texts = ["a red circle", "", "a blue square above the red circle, and 2 circles on 1 square."]
    with torch.inference_mode():
        together = model.embed_texts(texts)
        alone = [model.embed_texts([text])[0] for text in texts]

    assert max(greatest_difference(*pair) for pair in zip(together, alone, strict=True)) < 1e-6


def test_images_are_refused_by_name(sentence):
    with pytest.raises(FailedPrecondition, match="embeds texts only") as refusal:
        open_model(sentence).image_side()

    assert refusal.value.reason == "NO_IMAGE_TOWER"

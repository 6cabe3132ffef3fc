"""Load textual inversions from files: latents equal diffusers' `load_textual_inversion`; bad files are rejected by
name."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from safetensors.torch import save_file
from torch import Tensor

from lab.fixtures.checkpoints import TOKENS, write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from pentimento.devices.choices import DeviceChoice, DtypeChoice
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.inversions import BadInversion, read_inversion
from services.unet_worker.models.checkpoint_loading import load_checkpoint

WIDTH, SECOND_WIDTH = 16, 24
XL = {"clip_l": WIDTH, "clip_g": SECOND_WIDTH}


def vectors(count: int, width: int = WIDTH) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count * width))


def loaded(model: Path, embeddings: Path) -> DiffusionModel:
    return load_checkpoint(model, DeviceChoice.CPU, DtypeChoice.FLOAT32, embeddings=embeddings)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "embeddings"
    made.mkdir()
    return made


@torch.inference_mode()
@pytest.mark.parametrize("prompt", ["a <cat>", "dog, a bad-hand and <cat>", "none"])
def test_states_equal_diffusers_with_inversions(prompt: str, folder: Path, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    save_file({"<cat>": vectors(1)[0]}, folder / "a-cat.safetensors")
    save_file({"emb_params": vectors(3)}, folder / "bad-hand.safetensors")
    pipeline = DiffusionPipeline.from_pretrained(model, safety_checker=None, local_files_only=True)
    pipeline.load_textual_inversion(str(folder / "a-cat.safetensors"))
    pipeline.load_textual_inversion(str(folder / "bad-hand.safetensors"), token="bad-hand")

    found = loaded(model, folder).encode_prompt(prompt).conditioning

    wanted, _ = pipeline.encode_prompt(prompt, torch.device("cpu"), 1, do_classifier_free_guidance=False)
    torch.testing.assert_close(found.states, wanted, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_states_equal_diffusers_with_inversions_of_two_encoders(folder: Path, tmp_path: Path) -> None:
    model = write_xl_checkpoint(tmp_path / "model")
    parts = {key: vectors(2, width) for key, width in XL.items()}
    save_file(parts, folder / "style-x.safetensors")
    pipeline = DiffusionPipeline.from_pretrained(model, local_files_only=True)
    for key, end in (("clip_l", ""), ("clip_g", "_2")):
        encoder, tokenizer = getattr(pipeline, f"text_encoder{end}"), getattr(pipeline, f"tokenizer{end}")
        pipeline.load_textual_inversion(parts[key], "style-x", text_encoder=encoder, tokenizer=tokenizer)

    found = loaded(model, folder).encode_prompt("a style-x").conditioning

    states, _, pooled, _ = pipeline.encode_prompt("a style-x", device=torch.device("cpu"))
    torch.testing.assert_close(found.states, states, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pooled, pooled, rtol=0, atol=1e-6)


REJECTED: dict[str, tuple[str, dict[str, Tensor], str]] = {
    "two unknown keys": (
        "x",
        {"a": vectors(1), "b": vectors(1)},
        "must have one tensor, or clip_l and clip_g, got a, b",
    ),
    "one of two encoders": ("x", {"clip_l": vectors(1)}, "must have one tensor, or clip_l and clip_g, got clip_l"),
    "integers": ("x", {"emb_params": torch.ones(1, WIDTH, dtype=torch.int32)}, "'emb_params' must be 1 to 75 vectors"),
    "too many vectors": ("x", {"emb_params": vectors(76)}, "'emb_params' must be 1 to 75 vectors of floats"),
    "not finite": ("x", {"emb_params": vectors(1) / 0}, "'emb_params' has values that are not finite"),
    "unequal counts": ("x", {"clip_l": vectors(1), "clip_g": vectors(2)}, "must have equal numbers of vectors"),
    "a blank in the word": ("a cat", {"emb_params": vectors(1)}, "its word must be 1 to 64 printable characters"),
}


@pytest.mark.parametrize("what", REJECTED)
def test_read_inversion_names_file_and_key(what: str, folder: Path) -> None:
    name, tensors, said = REJECTED[what]
    path = folder / f"{name}.safetensors"
    save_file(tensors, path)

    with pytest.raises(BadInversion, match=f"^{name}.safetensors: .*{said}"):
        read_inversion(path)


def test_files_that_do_not_fit_are_left_out(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, tensors in {
        "a-wide": {"emb_params": vectors(1, WIDTH + 1)},
        "b-xl": {key: vectors(1, width) for key, width in XL.items()},
        "c": {"emb_params": vectors(1)},
        "dot": {"emb_params": vectors(2)},
        "dot_1": {"emb_params": vectors(1)},
        "dot_7": {"emb_params": vectors(1)},
        "e": {"dot": vectors(1)},
    }.items():
        save_file(tensors, folder / f"{name}.safetensors")
    (folder / "f.safetensors").write_bytes(b"\x80\x04pickle")

    with caplog.at_level(logging.WARNING):
        model = loaded(write_checkpoint(tmp_path / "model"), folder)

    assert [record.getMessage().removeprefix("an embedding is rejected: ") for record in caplog.records] == [
        "a-wide.safetensors: its vectors have 17 values, the text encoder takes 16",
        "b-xl.safetensors: must have one tensor for the family stable_diffusion",
        "c.safetensors: the word 'c' is taken by 'c' of the tokenizer; rename it",
        "dot_1.safetensors: the word 'dot_1' is taken by 'dot' of the tokenizer; rename it",
        "dot_7.safetensors: the word 'dot_7' is taken by 'dot' of the tokenizer; rename it",
        "e.safetensors: the word 'dot' is taken by 'dot' of the tokenizer; rename it",
        "f.safetensors: its header length does not fit the file",
    ]
    with torch.inference_mode():
        assert model.encode_prompt("dot").conditioning.states.shape[1] == TOKENS


@pytest.mark.parametrize("write", [write_xl_checkpoint, write_flow_checkpoint])
def test_inversion_of_another_family_is_left_out(
    write: Callable[[Path], Path], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_file({"emb_params": vectors(1)}, folder / "style-x.safetensors")

    loaded(write(tmp_path / "model"), folder)

    assert "an embedding is rejected: style-x.safetensors: " in caplog.text

"""Directories whose parts are sound, but not of one model: refused in one line before anything is painted."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import load_model
from tests.support.text_files import edit_json


def assert_refused(directory: Path, named: str) -> None:
    with pytest.raises(BadCheckpoint, match=named) as refused:
        load_model(directory, torch.device("cpu"), torch.float32)
    assert "\n" not in refused.value.message


def with_part_of(directory: Path, other: Path, part: str) -> Path:
    """The directory, with that part of another one."""
    shutil.rmtree(directory / part)
    shutil.copytree(other / part, directory / part)
    return directory


def test_a_denoiser_of_other_text_states_is_refused(tmp_path: Path) -> None:
    xl = write_xl_checkpoint(tmp_path / "xl")
    directory = with_part_of(write_checkpoint(tmp_path / "model", vae="kl"), xl, "unet")
    edit_json(directory / "unet/config.json", addition_embed_type=None, projection_class_embeddings_input_dim=None)

    assert_refused(directory, r"unet takes text states of 40 values.* make 16")


def test_an_sdxl_denoiser_of_other_text_states_is_refused(tmp_path: Path) -> None:
    flow = write_flow_checkpoint(tmp_path / "flow")
    directory = with_part_of(write_xl_checkpoint(tmp_path / "xl"), flow, "text_encoder_2")

    assert_refused(directory, r"unet takes text states of 40 values.* make 36")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"joint_attention_dim": 24}, r"text states of 24 values.* make 36"),
        ({"pooled_projection_dim": 24}, r"pooled text of 24 values.* make 36"),
    ],
    ids=["text states", "pooled text"],
)
def test_a_flow_of_other_texts_is_refused(tmp_path: Path, changes: dict[str, int], named: str) -> None:
    directory = write_flow_checkpoint(tmp_path / "flow", max_sequence_length=3)
    other = write_flow_checkpoint(tmp_path / "other", max_sequence_length=3, **changes)

    assert_refused(with_part_of(directory, other, "transformer"), named)


def test_a_t5_of_another_width_is_refused(tmp_path: Path) -> None:
    directory = write_flow_checkpoint(tmp_path / "flow", t5=True, max_sequence_length=3)
    other = write_flow_checkpoint(tmp_path / "other", max_sequence_length=3, joint_attention_dim=48)

    assert_refused(with_part_of(directory, other, "transformer"), r"text states of 48 values.* make 40")


def test_a_tokenizer_of_more_tokens_than_its_encoder_reads_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model")
    edit_json(directory / "tokenizer/tokenizer_config.json", model_max_length=40)

    assert_refused(directory, r"tokenizer: model_max_length=40.* 16")


def test_tokenizers_of_different_lengths_are_refused(tmp_path: Path) -> None:
    directory = write_xl_checkpoint(tmp_path / "xl")
    edit_json(directory / "tokenizer_2/tokenizer_config.json", model_max_length=10)

    assert_refused(directory, r"tokenizer_2: model_max_length=10.* 16")


BAD_VALUES: dict[str, tuple[Callable[[Path], None], str]] = {
    "attention to two texts": (
        lambda path: edit_json(path / "unet/config.json", dual_cross_attention=True),
        "dual_cross",
    ),
    "no size": (lambda path: edit_json(path / "unet/config.json", sample_size=0), "sample_size=0"),
    "one side": (lambda path: edit_json(path / "unet/config.json", sample_size=[8]), "sample_size"),
    "a text for a size": (lambda path: edit_json(path / "unet/config.json", sample_size="8"), "sample_size"),
    "latents times nothing": (lambda path: edit_json(path / "vae/config.json", scaling_factor=0), "scaling_factor=0"),
    "latents times a text": (lambda path: edit_json(path / "vae/config.json", scaling_factor="1"), "scaling_factor"),
    "betas of letters": (
        lambda path: edit_json(path / "scheduler/scheduler_config.json", trained_betas=["a"]),
        "wrong type",
    ),
}


@pytest.mark.parametrize(("damage", "named"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_that_no_picture_can_be_painted_with_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], named: str
) -> None:
    directory = write_checkpoint(tmp_path / "model")
    damage(directory)

    assert_refused(directory, named)


@pytest.mark.parametrize("statistics", [{"latents_std": [0.0] * 4}, {"latents_std": ["1"] * 4}, {"latents_std": [1.0]}])
def test_statistics_of_latents_that_are_none_are_refused(tmp_path: Path, statistics: dict[str, object]) -> None:
    directory = write_xl_checkpoint(tmp_path / "xl")
    edit_json(directory / "vae/config.json", latents_mean=[0.1] * 4, **statistics)

    assert_refused(directory, "latents_std")

"""Compare a LoRA's file with embeddings inside with diffusers: the LoRA loaded, and the embeddings in its
checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.fixtures.checkpoints import add_inversion, write_checkpoint, write_xl_checkpoint
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.lora_files import random_factors, write_diffusers_lora
from lab.fixtures.lora_reference import distance, latents_of_diffusers, latents_of_engine, read_set, spec_of_case
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import BadLora, check_lora, layers_of
from pentimento.domain.generation import Scheduler
from pentimento.domain.prompt_syntax import PromptSyntax

WORD, VECTORS = "bad-cat", 3
FAMILIES: dict[str, tuple[Callable[[Path], Path], dict[str, int]]] = {
    "SD": (write_checkpoint, {"string_to_param.*": 16}),
    "XL": (write_xl_checkpoint, {"clip_l": 16, "clip_g": 24}),
}


def vectors(widths: dict[str, int]) -> dict[str, Tensor]:
    """Return the tensors of the word, drawn as `add_inversion` draws them."""
    return {
        f"bundle_emb.{WORD}.{part}": torch.randn(VECTORS, width, generator=torch.Generator().manual_seed(5))
        for part, width in widths.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_lora_equal_diffusers_inversion(family: str, tmp_path: Path) -> None:
    write, widths = FAMILIES[family]
    checkpoint = write(tmp_path / "model")
    saved = add_inversion(write(tmp_path / "saved"), WORD, VECTORS)
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    plain = write_diffusers_lora(
        tmp_path / "plain", random_factors(layers_of(model.info.family, model.adaptable), size=0.1), alpha=3.0
    )
    bundled = tmp_path / "bundled.safetensors"
    save_file({**load_file(plain), **vectors(widths)}, bundled)
    case = Case(f"a {WORD} and a {WORD}", f"{WORD}, grey", Scheduler.DDIM, seed=3, steps=4)
    other = replace(case, prompt="a dog")

    (adapters,), (without,) = [(read_set(model, [(file, 1.0)]),) for file in (bundled, plain)]
    specs = [spec_of_case(model, one) for one in (case, other, case)]
    ours = latents_of_engine(model, specs, [adapters, adapters, without])

    for one, found in zip((case, other), ours, strict=False):
        theirs = latents_of_diffusers(saved, one, [(plain, 1.0)], fused=False)
        assert distance(found, theirs) <= 1e-4, one.prompt
    assert distance(ours[0], ours[2]) > 1e-3
    weighted = replace(specs[0], prompt=f"a ({WORD}:1.0)", prompt_syntax=PromptSyntax.A1111)
    assert latents_of_engine(model, [weighted], [adapters])[0].isfinite().all()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"clip_l": 16}, "must have string_to_param, got"),
        ({"string_to_param.*": 24}, r"must be 1 to 75 vectors of 16 values, got \[3, 24\]"),
        ({"other": 16}, "match no layer"),
    ],
)
def test_words_of_another_model_are_refused(tensors: dict[str, int], words: str, tmp_path: Path) -> None:
    model = load_model(write_checkpoint(tmp_path / "model"), torch.device("cpu"), torch.float32)
    base = layers_of(model.info.family, model.adaptable)
    file = write_diffusers_lora(tmp_path / "plain", random_factors(base, ends=("to_q",)), alpha=3.0)
    save_file({**load_file(file), **vectors(tensors)}, tmp_path / "bundled.safetensors")

    with pytest.raises(BadLora, match=words):
        check_lora(tmp_path / "bundled.safetensors", base)

"""Headers of LoRA files: rejected ones, with the text of each error."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lab.fixtures.lora_files import write_tensors
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.files.lora_headers import judge_lora
from tests.support.refusals import wrong_refusals

DOWN, UP = "unet.proj.lora_A.weight", "unet.proj.lora_B.weight"


def linear(rank: int = 4) -> dict[str, Tensor]:
    return {DOWN: torch.zeros(rank, 8), UP: torch.zeros(6, rank)}


TUCKER = {
    "lora_unet_conv.lora_down.weight": torch.zeros(2, 4, 1, 1),
    "lora_unet_conv.lora_mid.weight": torch.zeros(2, 2, 3, 3),
    "lora_unet_conv.lora_up.weight": torch.zeros(8, 2, 1, 1),
}
LOHA = {
    "lora_unet_proj.hada_w1_a": torch.zeros(6, 2),
    "lora_unet_proj.hada_w1_b": torch.zeros(2, 8),
    "lora_unet_proj.hada_w2_a": torch.zeros(6, 2),
    "lora_unet_proj.hada_w2_b": torch.zeros(2, 8),
}


def without(tensors: dict[str, Tensor], *ends: str, **others: Tensor) -> dict[str, Tensor]:
    """Return the tensors but those with these endings; `others` replace the ones that end with their names."""
    kept = {key: tensor for key, tensor in tensors.items() if not key.endswith(ends or ("-",))}
    return {key: next((one for end, one in others.items() if key.endswith(end)), kept[key]) for key in kept}


def bytes_of(tensors: dict[str, Tensor], folder: Path) -> bytes:
    return write_tensors(folder / "lora.safetensors", tensors).read_bytes()


LORAS = [
    linear(),
    {
        "lora_unet_conv.lora_down.weight": torch.zeros(2, 4, 3, 3),
        "lora_unet_conv.lora_up.weight": torch.zeros(8, 2, 1, 1),
    },
    {**linear(), "unet.proj.alpha": torch.tensor(2.0)},
    {**linear(), "unet.proj.alpha": torch.tensor([2.0])},
    {"a.lora.down.weight": torch.zeros(1, 2).half(), "a.lora.up.weight": torch.zeros(2, 1).bfloat16()},
    {"a.processor.to_q_lora.down.weight": torch.zeros(1, 2), "a.processor.to_q_lora.up.weight": torch.zeros(2, 1)},
    {
        DOWN: torch.zeros(4, 8).to(torch.float8_e4m3fn),
        UP: torch.zeros(6, 4).to(torch.float8_e5m2),
        "unet.proj.alpha": torch.tensor(2, dtype=torch.int32),
    },
    {"unet.proj.lora_A.style.weight": torch.zeros(4, 8), "unet.proj.lora_B.style.weight": torch.zeros(6, 4)},
    {**linear(), "unet.proj.lora_magnitude_vector.weight": torch.zeros(6)},
    {**linear(), "unet.proj.dora_scale": torch.zeros(1, 8)},
    TUCKER,
    LOHA,
    {"lycoris_proj.lokr_w1": torch.zeros(2, 2), "lycoris_proj.lokr_w2": torch.zeros(3, 4)},
]


def test_loras_pass(tmp_path: Path) -> None:
    for tensors in LORAS:
        judge_lora(bytes_of(tensors, tmp_path), "file")


WRONG = [
    ({DOWN: torch.zeros(4, 8)}, "'unet.proj' must have all factors, it has no up factor"),
    ({UP: torch.zeros(8, 4)}, "it has no down factor"),
    ({**linear(), "unet.proj.weight": torch.zeros(1)}, "1 keys are neither: 'unet.proj.weight'"),
    ({DOWN: torch.zeros(4, 8), UP: torch.zeros(6, 3)}, "must have down and up factors of one rank, got 4 and 3"),
    ({DOWN: torch.zeros(0, 8), UP: torch.zeros(6, 0)}, "must be of rank 1 to 1024, got 0"),
    (linear(1025), "must be of rank 1 to 1024, got 1025"),
    (
        {DOWN: torch.zeros(4), UP: torch.zeros(6, 4)},
        "'unet.proj' must have 2 or 4 dimensions, got [4] of the down factor",
    ),
    (
        {DOWN: torch.zeros(4, 8), UP: torch.zeros(6, 4, 1)},
        "'unet.proj' must have 2 or 4 dimensions, got [6, 4, 1] of the up factor",
    ),
    ({**linear(), "unet.proj.alpha": torch.zeros(2)}, "'unet.proj' must have an alpha of one number, got [2]"),
    (
        {**linear(), "unet.proj.lokr_w1": torch.zeros(2, 2)},
        "'unet.proj' must have factors of one form, it has those of LoKr and LoRA",
    ),
    (without(LOHA, "w2_b"), "'lora_unet_proj' must have all factors, it has no hada_w2_b factor"),
    (
        without(LOHA, w2_b=torch.zeros(2, 9)),
        "'lora_unet_proj' must have two products of one shape, got (2, 6, (8,)) and (2, 6, (9,))",
    ),
    (without(LOHA, w1_b=torch.zeros(3, 8)), "must have hada_w1_a and hada_w1_b factors of one rank, got 2 and 3"),
    (
        without(TUCKER, **{"mid.weight": torch.zeros(2, 3, 3, 3)}),
        "must have mid and down factors of one rank, got 3 and 2",
    ),
    (
        {"a.lokr_w1": torch.zeros(2, 2), "a.lokr_w2_a": torch.zeros(3, 2)},
        "'a' must have all factors, it has no lokr_w2_b factor",
    ),
    (
        {"a.lokr_w1": torch.zeros(2, 2), "a.lokr_w1_a": torch.zeros(2, 1), "a.lokr_w2": torch.zeros(3, 4)},
        "'a' must have lokr_w1 or lokr_w1_a, it has both",
    ),
    (
        {"a.lokr_w1": torch.zeros(20_000, 1), "a.lokr_w2": torch.zeros(1, 20_000)},
        "'a' must change at most 268435456 numbers, got 20000 by 20000",
    ),
    (
        {**linear(), "unet.proj.dora_scale": torch.zeros(1, 7)},
        "'unet.proj' must have a magnitude for each output or input, got [1, 7]",
    ),
    (
        {"a.lora_A.x.weight": torch.zeros(4, 8), "a.lora_B.y.weight": torch.zeros(6, 4)},
        "holds 2 adapters, must hold one: 'x', 'y'",
    ),
    (
        {**linear(), "unet.proj.alpha": torch.tensor(True)},
        "must be of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, got BOOL",
    ),
    (
        {DOWN: torch.zeros(4, 8).long(), UP: torch.zeros(6, 4)},
        "must be of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, got I64",
    ),
    (
        {DOWN: torch.zeros(4, 8).int(), UP: torch.zeros(6, 4)},
        "must be of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, got I32",
    ),
]


def test_lora_check_names_key_and_limit(tmp_path: Path) -> None:
    rows = [(tensors, rf"^file: .*{re.escape(said)}") for tensors, said in WRONG]

    assert wrong_refusals(InvalidArgument, lambda tensors: judge_lora(bytes_of(tensors, tmp_path), "file"), rows) == []


def test_lora_of_another_form_is_refused_by_form(tmp_path: Path) -> None:
    for key, form in (("oft_blocks", "OFT"), ("on_input", "IA3"), ("diff_b", "difference of whole weights")):
        data = bytes_of({**linear(), f"lora_unet_proj.{key}": torch.zeros(4)}, tmp_path)
        with pytest.raises(
            FailedPrecondition, match=f"file: must be a LoRA, LoHa or LoKr, this one is {form}"
        ) as refused:
            judge_lora(data, "file")
        assert refused.value.reason == "UNSUPPORTED_LORA"


def test_lora_with_embeddings_is_taken_by_their_keys(tmp_path: Path) -> None:
    words = {f"bundle_emb.cat.{part}": torch.zeros(2, 4) for part in ("string_to_param.*", "clip_l", "clip_g")}
    stranger = {"bundle_emb.cat.other": torch.zeros(2, 4)}

    judge_lora(bytes_of({**linear(), **words}, tmp_path), "file")
    with pytest.raises(InvalidArgument, match=r"1 keys are neither: 'bundle_emb\.cat\.other'"):
        judge_lora(bytes_of({**linear(), **stranger}, tmp_path), "file")


def test_lora_check_rejects_other_format(tmp_path: Path) -> None:
    for data in (b"", b"\x80\x02ctorch\n", b"PK\x03\x04" * 20, bytes_of(linear(), tmp_path)[:-1]):
        with pytest.raises(InvalidArgument, match="must be a safetensors file"):
            judge_lora(data, "file")
    with pytest.raises(InvalidArgument, match="must hold 1 to 20000 tensors, got 0"):
        judge_lora(len(b"{}").to_bytes(8, "little") + b"{}", "file")

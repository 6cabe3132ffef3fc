"""Reject files that are no LoRA of the model, with an error that names the fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.fixtures.lora_files import random_factors, with_header, write_diffusers_lora, write_tensors
from pentimento.diffusion.loras import BadLora, BaseLayers, check_lora, read_lora
from tests.unit.diffusion.loras.made_loras import LAYER, pair

WRONG: dict[str, tuple[Callable[[BaseLayers], dict[str, Tensor]], str, str]] = {
    "a layer that is not there": (
        lambda base: {**pair(base), "unet.no_such_layer.lora_A.weight": torch.zeros(1, 4)},
        "LORA_MISMATCH",
        "of 3 keys 1 match no layer .*'unet.no_such_layer.lora_A.weight'",
    ),
    "magnitudes of another layer": (
        lambda base: {**pair(base), f"unet.{LAYER}.lora_magnitude_vector": torch.zeros(4)},
        "BAD_LORA",
        r"attn1.to_q must have a magnitude for each output or input, got \[4\]",
    ),
    "two forms in a layer": (
        lambda base: {**pair(base), f"unet.{LAYER}.hada_w1_a": torch.zeros(32, 3)},
        "BAD_LORA",
        "attn1.to_q must have factors of one form, it has those of LoHa and LoRA",
    ),
    "half of a LoKr": (
        lambda base: {f"unet.{LAYER}.lokr_w1": torch.zeros(4, 4)},
        "BAD_LORA",
        "attn1.to_q must have all factors, it has no lokr_w2 factor",
    ),
    "a LoKr of another width": (
        lambda base: {f"unet.{LAYER}.lokr_w1": torch.zeros(4, 4), f"unet.{LAYER}.lokr_w2": torch.zeros(8, 9)},
        "LORA_MISMATCH",
        r"attn1.to_q: factors \[4, 4\] and \[8, 9\] do not make a change of \[32, 32\]",
    ),
    "OFT": (lambda base: {"lora_unet_mid_block.oft_blocks": torch.zeros(2, 2, 2)}, "UNSUPPORTED_LORA", "it is OFT"),
    "two adapters": (
        lambda base: {f"{LAYER}.lora_{half}.{half}.weight": torch.zeros(1, 4) for half in ("A", "B")},
        "BAD_LORA",
        "holds 2 adapters, must hold one: 'A', 'B'",
    ),
    "a component that is not there": (
        lambda base: {"text_encoder_2.encoder.layers.0.mlp.fc1.lora_A.weight": torch.zeros(1, 4)},
        "LORA_MISMATCH",
        "text_encoder_2",
    ),
    "inputs of another width": (
        lambda base: pair(base, down=torch.zeros(3, 5)),
        "LORA_MISMATCH",
        r"attn1.to_q: factors \[3, 5\]",
    ),
    "factors of different ranks": (
        lambda base: pair(base, down=torch.zeros(2, 32)),
        "BAD_LORA",
        "must have down and up factors of one rank, got 2 and 3",
    ),
    "transposed factors": (
        lambda base: dict(zip(pair(base), reversed(list(pair(base).values())), strict=True)),
        "LORA_MISMATCH",
        "do not make a change",
    ),
    "rank 0": (lambda base: pair(base, down=torch.zeros(0, 32), up=torch.zeros(32, 0)), "BAD_LORA", "got 0"),
    "a number as a factor": (lambda base: pair(base, down=torch.zeros(())), "BAD_LORA", "must have 2 or 4 dimensions"),
    "rank 1025": (lambda base: pair(base, down=torch.zeros(1025, 32), up=torch.zeros(32, 1025)), "BAD_LORA", "1025"),
    "one factor alone": (lambda base: dict(list(pair(base).items())[:1]), "BAD_LORA", "attn1.to_q .* has no up factor"),
    "one layer twice": (
        lambda base: {**pair(base), f"base_model.model.{LAYER}.lora_A.weight": torch.zeros(3, 32)},
        "BAD_LORA",
        "both for down of unet",
    ),
    "not a number": (lambda base: pair(base, down=torch.full((3, 32), float("nan"))), "BAD_LORA", "not finite"),
    "an infinite alpha": (
        lambda base: {**pair(base), f"unet.{LAYER}.alpha": torch.tensor(float("inf"))},
        "BAD_LORA",
        "alpha is no finite",
    ),
    "whole numbers": (lambda base: pair(base, down=torch.zeros(3, 32, dtype=torch.int8)), "BAD_LORA", "type I8"),
    "nothing": (lambda base: {}, "BAD_LORA", "not JSON"),
}

F32 = torch.float32


@pytest.mark.parametrize("what", WRONG)
def test_read_and_check_lora_name_fault(what: str, base: BaseLayers, tmp_path: Path) -> None:
    """A check reads only the header, which decides all but the numbers."""
    tensors, reason, said = WRONG[what]
    file = write_tensors(tmp_path / "it.safetensors", tensors(base))
    takes: list[Callable[[], object]] = [lambda: read_lora(file, base, F32), lambda: check_lora(file, base)]
    if what in ("not a number", "an infinite alpha"):
        takes.pop()()

    for take in takes:
        with pytest.raises(BadLora, match=said) as refused:
            take()
        assert refused.value.reason == reason
        assert str(refused.value).startswith("it.safetensors: ") and "\n" not in str(refused.value)


def test_read_lora_refuses_lora_of_another_family(
    base: BaseLayers, xl_base: BaseLayers, flow_base: BaseLayers, tmp_path: Path
) -> None:
    of_flow = write_diffusers_lora(tmp_path / "flow", random_factors(flow_base, ends=("to_q",)), alpha=1.0)
    with pytest.raises(BadLora, match=r"match no layer of this stable_diffusion model: .* and [0-9]+ more"):
        read_lora(of_flow, base, F32)

    # The names of SDXL's are all there, the widths of the text are others.
    factors = random_factors(xl_base, ends=("attn2.to_k",), components=["unet"])
    with pytest.raises(BadLora, match="do not make a change") as refused:
        read_lora(write_diffusers_lora(tmp_path / "xl", factors, alpha=1.0), base, F32)
    assert refused.value.reason == "LORA_MISMATCH"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"unet.use_dora": true}', "has no magnitudes, and is a DoRA"),
        ('{"unet.alpha_pattern": {"(a+)+$": 1}}', "no layer's name"),
        ('{"unet.alpha_pattern": [1]}', "alpha_pattern"),
        ('{"unet.lora_alpha": "8"}', "no number"),
        ('{"unet.lora_alpha": NaN}', "no number"),
        ('{"unet.lora_alpha": 1' + "0" * 4000 + "}", "no number"),
        ("[" * 100_000, "not JSON"),
        ("[]", "JSON object"),
    ],
)
def test_a_configuration_that_is_not_understood_is_refused(
    config: str, said: str, base: BaseLayers, tmp_path: Path
) -> None:
    file = write_tensors(tmp_path / "it.safetensors", pair(base), {"lora_adapter_metadata": config})

    with pytest.raises(BadLora, match=said):
        read_lora(file, base, F32)


def test_a_shape_lie_in_the_header_is_seen_before_anything_is_read(base: BaseLayers, tmp_path: Path) -> None:
    file = write_tensors(tmp_path / "it.safetensors", pair(base))

    def lie(header: dict[str, Any]) -> None:
        header[f"unet.{LAYER}.lora_A.weight"]["shape"] = [3, 2**40]

    with pytest.raises(BadLora, match="do not match its shape"):
        read_lora(with_header(file, lie), base, F32)


@pytest.mark.parametrize("data", [b"", b"\x80\x02ctorch\n", b"PK\x03\x04" * 100, bytes(range(64))])
def test_other_file_format_is_rejected(data: bytes, base: BaseLayers, tmp_path: Path) -> None:
    (tmp_path / "it.safetensors").write_bytes(data)

    with pytest.raises(BadLora):
        read_lora(tmp_path / "it.safetensors", base, F32)


def test_a_file_that_is_not_there_and_one_with_another_digest(base: BaseLayers, tmp_path: Path) -> None:
    file = write_tensors(tmp_path / "it.safetensors", pair(base))
    digest = read_lora(file, base, F32).digest

    assert read_lora(file, base, F32, digest).digest == digest
    with pytest.raises(BadLora, match="expected sha256:0000"):
        read_lora(file, base, F32, "sha256:" + "0" * 64)
    with pytest.raises(BadLora, match="no file"):
        read_lora(tmp_path / "other.safetensors", base, F32)


def test_a_disk_that_fails_is_no_bad_lora(base: BaseLayers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be readable later: the caller tries again."""
    file = write_tensors(tmp_path / "it.safetensors", pair(base))

    def failing(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(OSError, match="Input/output"):
        read_lora(file, base, F32)

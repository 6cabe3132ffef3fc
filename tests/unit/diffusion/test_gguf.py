"""GGUF files of a denoiser: their images, and rejected files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.fixtures.checkpoints import write_flow_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.file_layouts import GGUF_TYPES
from pentimento.diffusion.packed_weights import is_packed
from pentimento.diffusion.weight_memory import weight_bytes
from tests.support.single_files import sd3_transformer
from tests.unit.diffusion.specs import denoise, load, spec_with

gguf = pytest.importorskip("gguf")
BLOCK = 32
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with rows of whole blocks."""
    widths = {"attention_head_dim": 16, "num_attention_heads": 2, "caption_projection_dim": BLOCK}
    return write_flow_checkpoint(tmp_path_factory.mktemp("checkpoints") / "flow", **widths)


@pytest.fixture
def parts(flow: Path, tmp_path: Path) -> Path:
    """Return the model's folder without the weights of its denoiser."""
    folder = shutil.copytree(flow, tmp_path / "mine")
    next((folder / "transformer").glob("*.safetensors")).unlink()
    return folder


@pytest.fixture
def denoiser(flow: Path) -> Tensors:
    (weights,) = (flow / "transformer").glob("*.safetensors")
    return {name: tensor.contiguous() for name, tensor in sd3_transformer(load_file(weights), "").items()}


def is_quantised(tensor: Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] % BLOCK == 0


def write_gguf(file: Path, tensors: Tensors, kind: str) -> Path:
    writer, type_ = gguf.GGUFWriter(file, "sd3"), gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        values = tensor.numpy()
        if is_quantised(tensor):
            writer.add_tensor(name, gguf.quants.quantize(values, type_), raw_dtype=type_)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def rounded(tensor: Tensor, kind: str) -> Tensor:
    """Return a tensor after gguf's own quantisation, there and back."""
    if not is_quantised(tensor):
        return tensor
    type_ = gguf.GGMLQuantizationType[kind]
    return torch.from_numpy(np.array(gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), type_), type_)))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "BF16"])
def test_gguf_image_equals_image_of_rounded_weights(parts: Path, denoiser: Tensors, tmp_path: Path, kind: str) -> None:
    file = write_gguf(tmp_path / "mine.gguf", denoiser, kind)
    shutil.copytree(parts, tmp_path / "other")
    reference = tmp_path / "other.safetensors"
    save_file({name: rounded(tensor, kind).contiguous() for name, tensor in denoiser.items()}, reference)

    packed, full = load(file), load(reference)

    asked = DenoisingRequest(spec_with(scheduler=packed.info.schedulers[0]), NoiseStart())
    torch.testing.assert_close(denoise(packed, asked), denoise(full, asked), rtol=0, atol=1e-4)
    is_in_blocks = kind != "BF16"
    assert is_packed(packed.denoiser) == is_in_blocks
    assert not is_in_blocks or weight_bytes(packed.denoiser) < weight_bytes(full.denoiser) / 2


def other_kind(file: Path) -> None:
    """Change the stated type of the first quantised tensor, Q8_0, to one that is not known."""
    data = file.read_bytes()
    at = data.index(b"context_block.attn.qkv.weight") + len(b"context_block.attn.qkv.weight") + 4 + 2 * 8
    assert data[at : at + 4] == gguf.GGMLQuantizationType.Q8_0.to_bytes(4, "little")
    file.write_bytes(data[:at] + (200).to_bytes(4, "little") + data[at + 4 :])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda file: file.write_bytes(b"PK" + file.read_bytes()[2:]), "does not begin with GGUF"),
        (lambda file: file.write_bytes(file.read_bytes()[:-2000]), "not a gguf file"),
        (lambda file: file.write_bytes(file.read_bytes()[:40]), "not a gguf file"),
        (other_kind, "not a gguf file: .*200.* is not a valid GGMLQuantizationType"),
    ],
)
def test_damaged_gguf_is_refused_in_one_line(
    parts: Path, denoiser: Tensors, tmp_path: Path, damage: Callable[[Path], object], fault: str
) -> None:
    file = write_gguf(tmp_path / "mine.gguf", denoiser, "Q8_0")
    damage(file)

    with pytest.raises(BadCheckpoint, match=f"mine.gguf: .*{fault}") as refused:
        load(file)
    assert "\n" not in refused.value.message


def test_gguf_types_equal_diffusers() -> None:
    from diffusers.quantizers.gguf.utils import SUPPORTED_GGUF_QUANT_TYPES

    assert {kind.name for kind in SUPPORTED_GGUF_QUANT_TYPES} | {"F32", "F16"} == GGUF_TYPES

"""Tensors that are read block by block equal those of the libraries' own loaders."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ControlNetModel, UNet2DConditionModel
from safetensors.torch import load_file, save_file

from pentimento.diffusion import tensor_files
from pentimento.diffusion.controlnets import load_controlnet
from pentimento.diffusion.families import load_model
from pentimento.diffusion.host_memory import host_buffers
from pentimento.diffusion.tensor_files import read_tensors
from pentimento.diffusion.weights import load_network
from pentimento.files import file_sums, mapped_file
from pentimento.files.file_sums import CorruptComponent, FileSums, SumInProgress
from pentimento.files.mapped_file import MappedFile
from tests.support.tiny_models import WEIGHTS

CPU = torch.device("cpu")


@pytest.fixture(params=[64, 8 * 2**20], ids=["small blocks", "one block"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    for module in (file_sums, mapped_file, tensor_files):
        monkeypatch.setattr(module, "BLOCK_BYTES", request.param)
    yield request.param


def written(folder: Path, header_padding: int = 0) -> Path:
    torch.manual_seed(0)
    tensors = {
        "empty": torch.zeros(0, 3),
        "flag": torch.tensor([True, False, True]),
        "half": torch.randn(7, 5).half(),
        "rows": torch.randn(50, 9),
        "single": torch.tensor(3.5, dtype=torch.float64),
        "steps": torch.arange(11),
        "wide": torch.randn(33).bfloat16(),
    }
    save_file(tensors, file := folder / "made.safetensors")
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    # Other writers align nothing: values then straddle blocks, and start at odd addresses.
    header = data[8 : 8 + length] + b" " * header_padding
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    return file


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float32])
@pytest.mark.parametrize("header_padding", [0, 3])
@pytest.mark.parametrize("known", [False, True])
def test_read_tensors_equals_safetensors(
    tmp_path: Path, block_bytes: int, dtype: torch.dtype | None, header_padding: int, known: bool
) -> None:
    file, sums = written(tmp_path, header_padding), FileSums()
    if known:
        sums.note(file, sums.of(file), sums.key(file))

    found = read_tensors(file, sums, dtype)

    wanted = load_file(file)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        expected = tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor
        assert found[name].dtype == expected.dtype
        assert torch.equal(found[name], expected), name
    rows = read_tensors(file, sums, dtype, wanted=lambda name: name == "rows")
    assert rows.keys() == {"rows"} and torch.equal(rows["rows"], found["rows"])


def test_tensor_of_the_stored_type_is_mapped_and_writes_stay_in_the_process(tmp_path: Path) -> None:
    file, sums = written(tmp_path), FileSums()
    before = file.read_bytes()

    found = read_tensors(file, sums, torch.float32)
    mapped = str(file) in Path("/proc/self/maps").read_text()
    found["rows"].zero_()
    again = read_tensors(file, sums, torch.float32)

    assert mapped
    assert file.read_bytes() == before
    assert torch.count_nonzero(again["rows"]).item() == 450


def test_converted_tensors_take_the_memory_of_the_last_read(tmp_path: Path) -> None:
    file, sums, buffers = written(tmp_path), FileSums(), host_buffers(is_read_by_device=False)
    first = read_tensors(file, sums, torch.float16)
    begin = first["rows"].data_ptr()

    second = read_tensors(file, sums, torch.float16)
    assert second["rows"].data_ptr() != begin
    assert torch.equal(second["rows"], first["rows"])

    first["rows"].zero_()
    del first
    assert read_tensors(file, sums, torch.float16)["rows"].data_ptr() == begin
    assert torch.equal(read_tensors(file, sums, torch.float16)["rows"], second["rows"])
    del second
    buffers.drop_idle()
    assert buffers.idle_bytes == 0


def test_file_that_changes_while_it_is_read_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, sums = written(tmp_path), FileSums()
    verify = MappedFile.verify

    def touched(mapped: MappedFile, indices: Iterable[int]) -> None:
        verify(mapped, indices)
        os.utime(file, ns=(1, 1))

    monkeypatch.setattr(MappedFile, "verify", touched)
    with pytest.raises(CorruptComponent, match="changed while it was read"):
        read_tensors(file, sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_networks_equal_stock_loaders(dtype: torch.dtype) -> None:
    folder = WEIGHTS / "tiny-heavy"
    model = load_model(folder, CPU, dtype)
    stock = {
        "unet": UNet2DConditionModel.from_pretrained(folder / "unet", torch_dtype=dtype),
        "vae": AutoencoderTiny.from_pretrained(folder / "vae", torch_dtype=dtype),
    }

    for ours, theirs in ((model.denoiser, stock["unet"]), (model._autoencoder._module, stock["vae"])):  # type: ignore[attr-defined]
        expected = theirs.state_dict()
        found = ours.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        assert {tensor.dtype for tensor in found.values()} == {dtype}


def test_second_load_hashes_no_file_and_sees_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"block_out_channels": (32, 64), "cross_attention_dim": 32, "attention_head_dim": 4}
    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
    ControlNetModel(**sizes, **blocks).save_pretrained(tmp_path / "canny")
    (file,) = (tmp_path / "canny").glob("*.safetensors")
    first = load_controlnet(tmp_path / "canny", CPU, torch.float32, sums=FileSums(tmp_path / "sums"))
    hashed, add = [], SumInProgress.add
    monkeypatch.setattr(SumInProgress, "add", lambda self, piece: (hashed.append(len(piece)), add(self, piece)))
    sums = FileSums(tmp_path / "sums")

    assert load_controlnet(tmp_path / "canny", CPU, torch.float32, sums=sums).info.digest == first.info.digest
    assert sum(hashed) == (tmp_path / "canny" / "config.json").stat().st_size

    known = sums.known(file)
    assert known is not None
    with file.open("r+b") as opened:
        opened.seek(-1, 2)
        opened.write(b"\xff")
    sums.note(file, known, sums.key(file))
    with pytest.raises(CorruptComponent):
        load_controlnet(tmp_path / "canny", CPU, torch.float32, sums=sums)


def test_old_names_of_attention_are_read(tmp_path: Path) -> None:
    """Autoencoders of the first releases have them."""
    torch.manual_seed(0)
    AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4).save_pretrained(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    former = {".to_q.": ".query.", ".to_k.": ".key.", ".to_v.": ".value.", ".to_out.0.": ".proj_attn."}
    tensors = {}
    for name, tensor in load_file(file).items():
        for new, old in former.items():
            name = name.replace(new, old)
        tensors[name] = tensor
    assert any(".proj_attn." in name for name in tensors)
    save_file(tensors, file, {"format": "pt"})

    found = load_network(tmp_path, tmp_path.iterdir(), "AutoencoderKL", CPU, torch.float32, FileSums()).state_dict()

    expected = AutoencoderKL.from_pretrained(tmp_path).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())

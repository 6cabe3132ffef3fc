"""The precision of tensors that one thread makes, and of networks that it builds."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from lab.fixtures.flow_checkpoints import (
    write_flux_2_checkpoint,
    write_flux_checkpoint,
    write_klein_checkpoint,
    write_qwen_image_checkpoint,
    write_z_image_checkpoint,
)
from lab.fixtures.sana_checkpoints import write_sana_checkpoint
from pentimento.diffusion import thread_dtype, weights
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.thread_dtype import ThreadDtype
from pentimento.diffusion.weights import load_components

CPU = torch.device("cpu")
HALF = torch.float16


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: torch.zeros(2), HALF),
        (lambda: torch.nn.Linear(2, 2).weight, HALF),
        (lambda: torch.arange(0.0, 2.0), HALF),
        (lambda: torch.tensor([0.5]), HALF),
        (lambda: torch.arange(2), torch.int64),
        (lambda: torch.zeros(2, dtype=torch.float32), torch.float32),
        (lambda: torch.zeros(2, dtype=torch.float64), torch.float64),
        (lambda: torch.tensor(np.float32([0.5])), torch.float32),
        (lambda: torch.from_numpy(np.float32([0.5])), torch.float32),
        (lambda: torch.zeros(2).float(), torch.float32),
    ],
)
def test_tensors_have_the_threads_precision_where_torch_chooses_it(
    make: Callable[[], torch.Tensor], dtype: torch.dtype
) -> None:
    with ThreadDtype(HALF):
        assert make().dtype is dtype
        assert torch.get_default_dtype() is torch.float32
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.zeros, 2).result().dtype is torch.float32
    assert torch.zeros(2).dtype is torch.float32


@contextmanager
def default_dtype(dtype: torch.dtype, *_: Any) -> Iterator[None]:
    """Set the process's default precision, as the libraries do."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "write",
    [
        pytest.param(write_checkpoint, id="unet"),
        pytest.param(write_xl_checkpoint, id="xl"),
        pytest.param(lambda path: write_flow_checkpoint(path, t5=True), id="sd3"),
        pytest.param(write_flux_checkpoint, id="flux"),
        pytest.param(write_klein_checkpoint, id="flux-2-klein"),
        pytest.param(write_flux_2_checkpoint, id="flux-2-dev"),
        pytest.param(write_z_image_checkpoint, id="z-image"),
        pytest.param(write_qwen_image_checkpoint, id="qwen-image"),
        pytest.param(write_sana_checkpoint, id="sana"),
    ],
)
def test_networks_equal_build_with_default_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path], dtype: torch.dtype
) -> None:
    checkpoint = check_checkpoint(write(tmp_path / "model"))
    found = load_components(checkpoint, CPU, dtype)
    monkeypatch.setattr(weights, "ThreadDtype", default_dtype)
    monkeypatch.setattr(thread_dtype, "ThreadDtype", default_dtype)
    expected = load_components(checkpoint, CPU, dtype)

    for name, network in expected.items():
        if isinstance(network, torch.nn.Module):
            ours = dict([*found[name].named_parameters(), *found[name].named_buffers()])
            for key, tensor in (*network.named_parameters(), *network.named_buffers()):
                assert ours[key].dtype is tensor.dtype and torch.equal(ours[key], tensor), (name, key)

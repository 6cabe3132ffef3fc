"""The Triton kernels against float64, run by Triton's interpreter on a CPU; `test_triton_kernels.py` runs this file in
a process of its own. Tolerances: the rounding of the result, and single precision on the way. The interpreter cuts
bfloat16 off instead of rounding it and multiplies no bfloat16; such products are compared on a GPU alone
(`python -m benchmarks.gpu_rows`)."""

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.kernels import KernelMode, fuse, kernels_for, reference, triton_kernels

CPU = torch.device("cpu")
# Of a value: half a unit in the last place, for bfloat16 a whole one.
ROUNDING = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-7}
DTYPES = pytest.mark.parametrize("dtype", list(ROUNDING), ids=["float32", "float16", "bfloat16"])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded(got: Tensor, exact: Tensor, dtype: torch.dtype, room: float = 1e-5) -> None:
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), exact, rtol=ROUNDING[dtype], atol=room)


@DTYPES
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 8, 16, 16), 4), ((1, 6, 9, 7), 3), ((1, 4, 80, 70), 2), ((3, 4, 1, 1), 4)],
    ids=["one part", "odd sides", "parts of a group, the last not full", "one element a group"],
)
def test_normalisation_with_silu(dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> None:
    inputs, weight = random(*shape, dtype=dtype), random(shape[1], dtype=dtype, seed=1)
    bias = random(shape[1], dtype=dtype, seed=2)

    got = triton_kernels.group_norm_silu(inputs, weight, bias, groups, 1e-5)

    exact = reference.group_norm_silu(inputs.double(), weight.double(), bias.double(), groups, 1e-5)
    assert_rounded(got, exact, dtype)


def test_a_mean_far_from_zero_costs_no_precision() -> None:
    """Squares summed up would lose all of a deviation of one about a mean of a thousand."""
    inputs = random(1, 4, 80, 70, dtype=torch.float32) + 1000
    one, none = torch.ones(4), torch.zeros(4)

    got = triton_kernels.group_norm_silu(inputs, one, none, 2, 1e-5)

    exact = reference.group_norm_silu(inputs.double(), one.double(), none.double(), 2, 1e-5)
    assert_rounded(got, exact, torch.float32, room=2e-4)


@DTYPES
@pytest.mark.parametrize("shape", [(2, 5, 200), (3, 6000), (1, 1, 2)])
def test_gated_gelu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    projected = random(*shape, dtype=dtype)

    assert_rounded(triton_kernels.geglu(projected), reference.geglu(projected.double()), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [((2, 64), 32, 64), ((1, 130), 33, 70), ((3,), 5, 1)], ids=["whole", "odd", "little"]
)
def test_gated_gelu_inside_the_product(dtype: torch.dtype, rows: tuple[int, ...], depth: int, width: int) -> None:
    inputs, weight = random(*rows, depth, dtype=dtype), random(2 * width, depth, dtype=dtype, seed=1) / depth**0.5
    bias = random(2 * width, dtype=dtype, seed=2)

    got = triton_kernels.projected_geglu(inputs, weight, bias)

    exact = reference.projected_geglu(inputs.double(), weight.double(), bias.double())
    assert got.shape == (*rows, width)
    assert_rounded(got, exact, dtype)


@pytest.mark.parametrize("mode", [KernelMode.FUSED, KernelMode.FUSED_PRODUCT])
@torch.inference_mode()
def test_a_network_predicts_the_same_with_them(model: DiffusionModel, mode: KernelMode) -> None:
    inputs = example_input(model, BatchKey(16, 16, guided=False), 1)
    before, kernels = model.predict(inputs), kernels_for(mode, CPU)
    assert kernels is not None

    fused = fuse(model.denoiser, kernels)
    try:
        prediction = model.predict(inputs)
    finally:
        fused.restore()

    assert not torch.equal(prediction, before), "the kernels were not run"
    torch.testing.assert_close(prediction, before, rtol=1e-4, atol=1e-5)

"""Compare the Triton kernels with float64, run by Triton's interpreter on a CPU; `test_triton_kernels.py` runs this
file in a separate process. Tolerances: the rounding of the result, and single precision on the way. The interpreter
cuts bfloat16 off instead of rounding it and multiplies no bfloat16; such products are compared on a GPU alone (`python
-m benchmarks.gpu_rows`)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.kernels import fuse, kernels_for, reference, triton_kernels

CPU = torch.device("cpu")
# Relative to a value: half a unit in the last place, a whole one for bfloat16.
ROUNDING = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-7}
DTYPES = pytest.mark.parametrize("dtype", list(ROUNDING), ids=["float32", "float16", "bfloat16"])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def random_images(*shape: int, dtype: torch.dtype) -> Tensor:
    return random(*shape, dtype=dtype).to(memory_format=torch.channels_last)


def assert_rounded(got: Tensor, exact: Tensor, dtype: torch.dtype, room: float = 1e-5) -> None:
    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), exact, rtol=ROUNDING[dtype], atol=room)


@DTYPES
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 8, 16, 16), 4), ((1, 6, 9, 7), 3), ((1, 4, 80, 70), 2), ((3, 4, 1, 1), 4)],
    ids=["whole parts", "odd sides", "more parts than are merged at once", "one element a group"],
)
def test_normalisation_with_silu(dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> None:
    inputs, weight = random_images(*shape, dtype=dtype), random(shape[1], dtype=dtype, seed=1)
    bias, shifts = random(shape[1], dtype=dtype, seed=2), random(*shape[:2], dtype=dtype, seed=3)

    got = triton_kernels.group_norm(inputs, weight, bias, groups, 1e-5, shifts=shifts, activated=True)

    doubled = (inputs.double(), weight.double(), bias.double(), groups, 1e-5)
    exact = reference.group_norm(*doubled, shifts=shifts.double(), activated=True)
    assert_rounded(got, exact, dtype, room=1e-3 if shape[2:] == (1, 1) else 1e-5)
    assert got.stride() == inputs.stride()


def test_normalisation_alone() -> None:
    inputs = random_images(2, 6, 5, 5, dtype=torch.float32)
    weight, bias = random(6, dtype=torch.float32, seed=1), random(6, dtype=torch.float32, seed=2)

    got = triton_kernels.group_norm(inputs, weight, bias, 3, 1e-5)

    assert_rounded(got, torch.nn.functional.group_norm(inputs.double(), 3, weight.double(), bias.double()), got.dtype)


def test_normalisation_of_image_of_autoencoder() -> None:
    """Autoencoders normalise larger parts."""
    inputs = random_images(1, 4, 280, 260, dtype=torch.float16)
    weight, bias = random(4, dtype=torch.float16, seed=1), random(4, dtype=torch.float16, seed=2)

    got = triton_kernels.group_norm(inputs, weight, bias, 2, 1e-6, activated=True)

    exact = reference.group_norm(inputs.double(), weight.double(), bias.double(), 2, 1e-6, activated=True)
    assert_rounded(got, exact, torch.float16)


def test_a_mean_far_from_zero_costs_no_precision() -> None:
    """A sum of squares would lose a deviation of one about a mean of a thousand."""
    inputs = random_images(1, 4, 80, 70, dtype=torch.float32) + 1000
    one, none = torch.ones(4), torch.zeros(4)

    got = triton_kernels.group_norm(inputs, one, none, 2, 1e-5, activated=True)

    exact = reference.group_norm(inputs.double(), one.double(), none.double(), 2, 1e-5, activated=True)
    assert_rounded(got, exact, torch.float32, room=2e-4)


@DTYPES
@pytest.mark.parametrize("shape", [(2, 5, 200), (3, 6000), (1, 1, 2)])
def test_gated_gelu(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    projected = random(*shape, dtype=dtype)

    assert_rounded(triton_kernels.geglu(projected), reference.geglu(projected.double()), dtype)


@DTYPES
@pytest.mark.parametrize("biased", [True, False], ids=["with a bias", "without"])
def test_a_sum_with_a_bias(dtype: torch.dtype, biased: bool) -> None:
    left, right = random_images(2, 6, 30, 31, dtype=dtype), random_images(2, 6, 30, 31, dtype=dtype).flip(0)
    right = right.contiguous(memory_format=torch.channels_last)
    bias = random(6, dtype=dtype, seed=2) if biased else None

    got = triton_kernels.join(left, right, bias)

    exact = reference.join(left.double(), right.double(), None if bias is None else bias.double())
    assert_rounded(got, exact, dtype)
    assert got.stride() == left.stride()


@DTYPES
@pytest.mark.parametrize("shape", [(2, 5, 48), (3, 1), (7, 64)])
def test_a_sum_and_its_layer_normalisation(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    left, right = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight, bias = random(shape[-1], dtype=dtype, seed=2), random(shape[-1], dtype=dtype, seed=3)

    total, got = triton_kernels.add_layer_norm(left, right, weight, bias, 1e-5)

    assert_rounded(total, left.double() + right.double(), dtype)
    exact = torch.nn.functional.layer_norm(total.double(), shape[-1:], weight.double(), bias.double())
    assert_rounded(got, exact, dtype, room=1e-4)


@torch.inference_mode()
def test_network_and_decoder_compute_the_same_with_kernels(model: DiffusionModel, xl_model: DiffusionModel) -> None:
    inputs = example_input(model, BatchKey(16, 16, guided=False), 1)
    latent = random(*xl_model.latent_shape(32, 32), dtype=torch.float32)
    kernels = kernels_for(CPU)
    computed: list[tuple[Any, Callable[[], Tensor]]] = [
        (model.denoiser, lambda: model.predict(inputs)),
        (xl_model.picture_decoder, lambda: xl_model.decode_latent(latent)),
    ]

    for network, compute in computed:
        before = compute()
        fused = fuse(network, kernels)
        try:
            after = compute()
        finally:
            fused.restore()
        assert not torch.equal(after, before), "the kernels were not run"
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)

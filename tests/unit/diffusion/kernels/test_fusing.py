"""Layers with kernels inside: same weights, same names, put back again. The kernels are torch's own operations here."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel
from torch import Tensor, nn

from pentimento.diffusion.engine.probe import example_input
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.kernels import (
    REFERENCE,
    Kernels,
    fuse,
    fusing,
    kernels_for,
    layers,
    runs_kernels,
    usual_kernels,
)
from pentimento.diffusion.kernels.fusing import FusedLayers
from pentimento.diffusion.kernels.layers import FusedNorm
from pentimento.diffusion.loras import WeightedLora, layers_of
from pentimento.diffusion.loras.patching import WeightPatch, row_updates, stack_adapters
from pentimento.domain.errors import FailedPrecondition
from tests.support.logged import said_by
from tests.unit.diffusion.loras.made_loras import made_lora

KEY = BatchKey(32, 32, guided=True)


@pytest.fixture(autouse=True)
def layouts(model: DiffusionModel, xl_model: DiffusionModel) -> Iterator[None]:
    """Restore the memory layout of the networks, which other tests share."""
    yield
    for one in (model, xl_model):
        one.denoiser.to(memory_format=torch.contiguous_format)


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    """Compare results up to the rounding of other orders of summation."""
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@contextmanager
def fused(network: nn.Module, kernels: Kernels) -> Iterator[FusedLayers]:
    """Run the kernels inside."""
    layers = fuse(network, kernels)
    try:
        yield layers
    finally:
        layers.restore()


class Counted:
    """Count the calls of each kernel."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    @property
    def kernels(self) -> Kernels:
        def counted(name: str) -> Callable[..., Any]:
            def call(*parts: Any, **options: Any) -> Any:
                self.calls[name] += 1
                return getattr(REFERENCE, name)(*parts, **options)

            return call

        return Kernels(*map(counted, ("group_norm", "join", "add_layer_norm", "geglu")))


def kinds(network: nn.Module) -> list[str]:
    return [type(module).__name__ for module in network.modules()]


@torch.inference_mode()
def test_every_layer_with_a_kernel_is_reached_once(unet_model: DiffusionModel) -> None:
    network, inputs = unet_model.denoiser, example_input(unet_model, KEY, 2)
    names = Counter(kinds(network))
    before, counted = unet_model.predict(inputs), Counted()

    with fused(network, counted.kernels):
        prediction = unet_model.predict(inputs)
        halves = unet_model.decode(inputs, unet_model.encode(inputs))

    blocks, layers = names["ResnetBlock2D"], names["BasicTransformerBlock"]
    norms = 2 * blocks + names["Transformer2DModel"] + 1
    # The first of a transformer's has nothing added before it.
    sums = 3 * layers - names["Transformer2DModel"]
    expected = {"group_norm": norms, "join": blocks, "add_layer_norm": sums, "geglu": layers}
    assert counted.calls == Counter({name: 2 * count for name, count in expected.items()})
    assert blocks > 5 and layers > 2
    assert_same(prediction, before)
    assert torch.equal(halves, prediction)


@torch.inference_mode()
def test_diffusers_own_forward_runs_them_too(model: DiffusionModel) -> None:
    """A ControlNet has the same layers."""
    inputs, counted = example_input(model, KEY, 2), Counted()
    network = ControlNetModel.from_unet(model.denoiser, conditioning_embedding_out_channels=(8, 8, 8)).eval()
    condition = torch.rand(2, 3, 32, 32)

    def residuals() -> list[Tensor]:
        states = inputs.conditioning.states
        down, middle = network(inputs.latents, inputs.timesteps, states, condition, return_dict=False)
        return [*down, middle]

    before = residuals()
    fused = fuse(network, counted.kernels)
    controlled = residuals()
    fused.restore()

    assert {"group_norm", "geglu"} == set(counted.calls)
    for theirs, ours in zip(before, controlled, strict=True):
        assert_same(ours, theirs)


@torch.inference_mode()
def test_restored_layers_are_the_very_same(unet_model: DiffusionModel) -> None:
    network = unet_model.denoiser
    before, names = list(network.modules()), list(network.state_dict())

    fused = fuse(network, REFERENCE)
    assert len(fused) > 10
    assert list(network.state_dict()) == names
    fused.restore()
    fused.restore()

    assert list(map(id, network.modules())) == list(map(id, before))


@torch.inference_mode()
def test_loras_of_fused_layers_keep_their_effect(model: DiffusionModel) -> None:
    network, inputs = model.denoiser, example_input(model, KEY, 2)
    base = layers_of("stable_diffusion", {"unet": network})
    chosen = (WeightedLora(made_lora(base, 1, ends=("ff.net.0.proj", "conv1", "proj_in", "conv_shortcut")), 0.7),)
    row = row_updates(chosen, "unet", torch.device("cpu"), torch.float32)
    beside = replace(inputs, adapters=stack_adapters([row], 2))
    patch = WeightPatch(network, "unet", model.forget_time_terms)

    def predictions() -> tuple[Tensor, Tensor, Tensor]:
        patch.hold(chosen)
        patched = model.predict(inputs)
        patch.hold(())
        return patched, model.predict(beside), model.predict(inputs)

    before, counted = predictions(), Counted()
    fused = fuse(network, counted.kernels)
    after = predictions()
    fused.restore()

    for ours, theirs in zip(after, before, strict=True):
        assert_same(ours, theirs)
    assert not torch.allclose(after[0], after[2], atol=1e-3)
    assert not torch.allclose(after[1], after[2], atol=1e-3)


def test_images_that_do_not_lie_channels_last_go_the_reference_way() -> None:
    def refused(*parts: object, **options: object) -> Tensor:
        raise AssertionError("the kernel takes pictures that lie channels last")

    norm = nn.GroupNorm(2, 4)
    layer = FusedNorm(norm, Kernels(group_norm=refused), activates=True)
    inputs = torch.randn(2, 4, 6, 6)

    torch.testing.assert_close(layer(inputs), nn.functional.silu(norm(inputs)))


def test_kernels_for_names_missing_requirement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert usual_kernels(torch.device("cpu")) is None
    with pytest.raises(FailedPrecondition) as refusal:
        kernels_for(torch.device("cpu"))
    assert refusal.value.reason in ("NO_TRITON", "NO_CUDA")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FailedPrecondition) as refusal:
        kernels_for(torch.device("cuda"))
    assert refusal.value.reason == "NO_TRITON"


def test_kernels_are_omitted_with_log_if_triton_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def without_a_compiler(projected: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler")

    runs_kernels.cache_clear()
    monkeypatch.setattr(fusing, "kernels_for", lambda device: Kernels(geglu=without_a_compiler))
    monkeypatch.setattr(torch, "zeros", lambda shape, device: Tensor())

    assert runs_kernels(torch.device("cuda")) is False
    assert runs_kernels(torch.device("cpu")) is False
    runs_kernels.cache_clear()

    (record,) = said_by("pentimento.diffusion.kernels.fusing", caplog)
    assert "C compiler" in record.getMessage() and getattr(record, "reason", "") == "NO_KERNELS"


@torch.inference_mode()
@pytest.mark.parametrize("loaded", ["xl_model", "flow_model"])
def test_a_fused_decoder_makes_the_same_pixels(loaded: str, request: pytest.FixtureRequest) -> None:
    found: DiffusionModel = request.getfixturevalue(loaded)
    decoder, counted = found.picture_decoder, Counted()
    latent = torch.randn(found.latent_shape(32, 24), generator=torch.Generator().manual_seed(1))
    plain = found.decode_latent(latent)
    blocks = kinds(decoder).count("ResnetBlock2D")

    with fused(decoder, counted.kernels):
        pixels = found.decode_latent(latent)

    assert_same(pixels, plain)
    assert counted.calls == {"group_norm": 2 * blocks + 1, "join": blocks}
    assert torch.equal(found.decode_latent(latent), plain)


@torch.inference_mode()
@pytest.mark.parametrize(("loaded", "most_elements"), [("xl_model", 8), ("model", layers.MOST_ELEMENTS)])
def test_fused_decoder_too_large_or_of_another_kind_runs_no_kernel(
    loaded: str, most_elements: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    found: DiffusionModel = request.getfixturevalue(loaded)
    latent, counted = torch.ones(found.latent_shape(32, 32)), Counted()
    plain = found.decode_latent(latent)
    monkeypatch.setattr(layers, "MOST_ELEMENTS", most_elements)

    with fused(found.picture_decoder, counted.kernels):
        assert_same(found.decode_latent(latent), plain)

    assert counted.calls == {}

"""Test patches of weights: the patched weights, the restored bits, and the copies to a device."""

import hashlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.loras import AdapterSet, BaseLayers, Lora, LowRankFactors, WeightedLora
from pentimento.diffusion.loras.patching import FactorsThere, SecondWeights, WeightPatch
from tests.unit.diffusion.loras.made_loras import made_lora


def weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def digest(network: nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in network.state_dict().items():
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def wanted(before: dict[str, Tensor], adapters: AdapterSet) -> dict[str, Tensor]:
    """Return W + the sum of weight * alpha / rank * up @ down, in double precision."""
    after = {name: value.double() for name, value in before.items()}
    for one in adapters:
        for module, factors in one.lora.components["unet"].items():
            change = factors.up.double().flatten(1) @ factors.down.double().flatten(1)
            scale = one.weight * factors.alpha / factors.down.shape[0]
            after[f"{module}.weight"] = after[f"{module}.weight"] + scale * change.view(
                before[f"{module}.weight"].shape
            )
    return after


@pytest.fixture
def patch(model: DiffusionModel) -> Iterator[WeightPatch]:
    patch = WeightPatch(model.denoiser, "unet")
    yield patch
    patch.hold(())


def test_several_loras_at_their_weights_are_in_the_weights(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch
) -> None:
    adapters = (WeightedLora(made_lora(base, 1), 0.7), WeightedLora(made_lora(base, 2, rank=2, alpha=1.0), -0.4))
    before = weights(model.denoiser)

    patch.hold(adapters)

    after = weights(model.denoiser)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {f"{module}.weight" for one in adapters for module in one.lora.components["unet"]}
    assert any(before[name].dim() == 4 for name in changed)
    for name, value in wanted(before, adapters).items():
        torch.testing.assert_close(after[name].double(), value, rtol=1e-6, atol=1e-6)


def test_linear_layers_have_the_bits_that_peft_merges(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch
) -> None:
    lora = made_lora(base, 1, rank=3, alpha=5.0, components=["unet"])
    linear = [name for name in lora.components["unet"] if isinstance(model.denoiser.get_submodule(name), nn.Linear)]
    peers = {name: peft_layer(model.denoiser.get_submodule(name), lora.components["unet"][name]) for name in linear}

    patch.hold((WeightedLora(lora, 0.7),))

    assert len(linear) > 10
    for name, peer in peers.items():
        peer.set_scale("default", 0.7)
        peer.merge()
        assert torch.equal(model.denoiser.get_submodule(name).weight, peer.base_layer.weight)


def peft_layer(layer: nn.Module, factors: LowRankFactors) -> Any:
    """Return PEFT's layer around a copy of `layer`, with the LoRA's factors."""
    from peft import LoraConfig
    from peft.tuners.lora.layer import Linear

    peer: Any = Linear(
        deepcopy(layer),
        "default",
        LoraConfig(),
        r=factors.rank,
        lora_alpha=factors.alpha,  # type: ignore[arg-type]
    )
    peer.lora_A["default"].weight.data.copy_(factors.down)
    peer.lora_B["default"].weight.data.copy_(factors.up)
    return peer


def test_the_sum_of_two_is_not_the_product_of_sums(model: DiffusionModel, base: BaseLayers, patch: WeightPatch) -> None:
    first, second = made_lora(base, 1), made_lora(base, 2)
    before = weights(model.denoiser)
    patch.hold((WeightedLora(first), WeightedLora(second)))
    name = next(iter(first.components["unet"]))
    one, other = first.components["unet"][name], second.components["unet"][name]

    change = model.denoiser.get_submodule(name).weight - before[f"{name}.weight"]

    sums = (one.up + other.up).flatten(1) @ (one.down + other.down).flatten(1)
    assert (change.flatten(1) - one.scale * sums).abs().max() > 0.01


@pytest.mark.slow
def test_thousand_patches_restore_bits_and_keep_only_layers(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch
) -> None:
    ends = ("to_q", "conv1")
    loras = [made_lora(base, seed, ends=ends, components=["unet"], size=3.0) for seed in range(3)]
    before = digest(model.denoiser)
    layers = {f"{module}.weight" for module in loras[0].components["unet"]}
    touched_bytes = sum(value.nbytes for name, value in model.denoiser.state_dict().items() if name in layers)

    for cycle in range(1000):
        some = loras[: cycle % 4]
        patch.hold(tuple(WeightedLora(lora, 0.1 + cycle % 7) for lora in some))
        assert patch.saved_bytes == (touched_bytes if cycle else 0)
        if cycle % 3 == 0:
            patch.hold(())
    patch.hold(())

    assert digest(model.denoiser) == before
    assert patch.saved_bytes == touched_bytes


def test_layer_has_a_second_weight_from_its_first_patch_on(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (made_lora(base, seed, ends=ends) for seed, ends in ((1, ("to_q",)), (2, ("to_q", "conv1"))))
    before = digest(model.denoiser)
    patch.hold((WeightedLora(first),))
    patch.hold(())
    added: list[set[str]] = []
    add = SecondWeights.add

    def noted(self: SecondWeights, given: Mapping[str, Tensor]) -> None:
        before = set(self.by_name)
        add(self, given)
        added.append(self.by_name.keys() - before)

    monkeypatch.setattr(SecondWeights, "add", noted)
    for lora in (first, second, second):
        patch.hold(())
        patch.hold((WeightedLora(lora),))
    patch.hold(())

    assert [{name.rpartition(".")[2] for name in names} for names in added if names] == [{"conv1"}]

    assert digest(model.denoiser) == before


def test_a_set_after_another_is_made_of_the_base_alone(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch
) -> None:
    first = (WeightedLora(made_lora(base, 1)),)
    second = (WeightedLora(made_lora(base, 2, ends=("to_q", "conv2"))),)
    patch.hold(second)
    alone = weights(model.denoiser)
    patch.hold(())

    patch.hold(first)
    patch.hold(second)

    assert all(torch.equal(value, alone[name]) for name, value in weights(model.denoiser).items())


def test_weight_zero_is_no_lora_and_the_same_set_is_not_added_twice(
    model: DiffusionModel, base: BaseLayers, patch: WeightPatch
) -> None:
    before = digest(model.denoiser)
    lora = made_lora(base, 1)

    patch.hold((WeightedLora(lora, 0.0),))
    assert digest(model.denoiser) == before
    patch.hold((WeightedLora(lora),))
    patched = digest(model.denoiser)
    patch.hold((WeightedLora(lora),))

    assert digest(model.denoiser) == patched != before


def test_failed_patch_restores_base(model: DiffusionModel, base: BaseLayers, patch: WeightPatch) -> None:
    before = digest(model.denoiser)
    lora = made_lora(base, 1)
    broken = Lora(
        "sha256:broken",
        0,
        {"unet": {**lora.components["unet"], "no.such.layer": next(iter(lora.components["unet"].values()))}},
    )
    patch.hold((WeightedLora(lora, 0.5),))

    with pytest.raises(AttributeError):
        patch.hold((WeightedLora(broken),))

    assert digest(model.denoiser) == before
    assert patch.held == ()


def test_kept_time_terms_are_forgotten_with_the_weights_that_made_them(model: DiffusionModel, base: BaseLayers) -> None:
    patch = WeightPatch(model.denoiser, "unet", model.forget_time_terms)
    plain = model.time_terms(500.0, 1)
    assert plain is not None

    patch.hold((WeightedLora(made_lora(base, 1, ends=("time_emb_proj",))),))
    patched = model.time_terms(500.0, 1)
    patch.hold(())
    restored = model.time_terms(500.0, 1)

    assert patched is not None and not torch.equal(patched, plain)
    assert restored is not None and torch.equal(restored, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    layer = nn.Sequential(nn.Linear(8, 8, bias=False)).to(dtype)
    base = BaseLayers("any", "unet", {"unet": {"0": (8, 8)}})
    adapters = (WeightedLora(made_lora(base, 1, ends=("0",))),)
    before = weights(layer)
    patch = WeightPatch(layer, "unet")

    patch.hold(adapters)
    patched = weights(layer)["0.weight"]
    patch.hold(())

    exact = wanted(before, adapters)["0.weight"].float().to(dtype)
    assert (patched == exact).float().mean() > 0.95  # a product in single precision may fall to either side of a half
    torch.testing.assert_close(patched, exact)
    assert torch.equal(weights(layer)["0.weight"], before["0.weight"])


def test_second_weights_have_the_types_and_strides_of_the_first_and_are_added_once() -> None:
    weights = {
        "linear": torch.randn(3, 5),
        "convolution": torch.randn(4, 2, 3, 3).to(memory_format=torch.channels_last),
        "half": torch.randn(7).half(),
    }
    second = SecondWeights()

    second.add({"linear": weights["linear"]})
    linear = second.by_name["linear"]
    second.add(weights)

    assert second.by_name["linear"] is linear
    assert [(one.dtype, one.shape, one.stride()) for one in second.by_name.values()] == [
        (one.dtype, one.shape, one.stride()) for one in weights.values()
    ]
    assert not {one.data_ptr() for one in second.by_name.values()} & {one.data_ptr() for one in weights.values()}


@torch.inference_mode()
def test_patch_on_a_cpu_never_writes_the_base_weight(
    base: BaseLayers, model: DiffusionModel, patch: WeightPatch
) -> None:
    lora = made_lora(base, 1, ends=("to_q", "conv1"), components=["unet"])
    layers = [model.denoiser.get_submodule(name) for name in lora.components["unet"]]
    own = [layer.weight.detach() for layer in layers]
    before = [weight.clone() for weight in own]

    patch.hold((WeightedLora(lora),))
    assert not {layer.weight.data_ptr() for layer in layers} & {weight.data_ptr() for weight in own}
    patch.hold(())

    assert [layer.weight.data_ptr() for layer in layers] == [weight.data_ptr() for weight in own]
    assert all(torch.equal(weight, copy) for weight, copy in zip(own, before, strict=True))


def test_factors_become_matrices_of_single_precision() -> None:
    file = torch.randn(100).half()
    factors = LowRankFactors(file[10:46].view(2, 2, 3, 3), file[50:58].view(4, 2, 1, 1), alpha=1.0)

    up, down = FactorsThere(torch.device("cpu")).matrices(factors)

    assert (up.dtype, down.dtype, up.shape, down.shape) == (torch.float32, torch.float32, (4, 2), (2, 18))
    assert torch.equal(up.flatten(), file[50:58].float()) and torch.equal(down.flatten(), file[10:46].float())


def test_factors_of_one_file_go_to_another_device_in_one_copy() -> None:
    """A device without memory stands in for a GPU: shapes and places are a GPU's."""
    file, other = torch.randn(100), torch.randn(20)
    there = FactorsThere(torch.device("meta"))

    first = there.matrices(LowRankFactors(file[:6].view(2, 3), file[6:14].view(4, 2), alpha=1.0))
    second = there.matrices(LowRankFactors(file[14:20].view(2, 3), other[:8].view(4, 2), alpha=1.0))

    memories = {tensor.untyped_storage()._cdata for tensor in (*first, *second)}
    assert len(memories) == 2
    assert (first[0].storage_offset(), first[1].storage_offset(), second[1].storage_offset()) == (6, 0, 14)

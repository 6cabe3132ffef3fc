"""The bypass by row: it adds to each row what a patched weight would, in layers of every shape."""

import pytest
import torch
from torch import Tensor, nn

from pentimento.diffusion.families import DiffusionModel, PerSampleAdapters
from pentimento.diffusion.families.adapters import adapted
from pentimento.diffusion.loras import AdapterSet, BaseLayers, WeightedLora, layers_of
from pentimento.diffusion.loras.patching import RowUpdates, WeightPatch, row_updates, stack_adapters
from pentimento.diffusion.prompts import PromptMemo
from tests.unit.diffusion.loras.made_loras import made_lora


class PartOfMore(nn.Conv2d):
    """Its output is a part of something wider, so that its pixels do not follow each other in memory."""

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        return nn.functional.pad(output, (0, 1))[..., : output.shape[-1]]


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 5), (7, 6)),
    "linear of single rows": (nn.Linear(6, 5), (6,)),
    "3x3": (nn.Conv2d(4, 6, 3, padding=1), (4, 8, 7)),
    "1x1": (nn.Conv2d(4, 6, 1), (4, 8, 7)),
    "5x3": (nn.Conv2d(4, 6, (5, 3), padding=(2, 1)), (4, 8, 7)),
    "3x3 of a larger picture": (nn.Conv2d(4, 6, 3, padding=1), (4, 9, 8)),
    "5x3 of a larger picture": (nn.Conv2d(4, 6, (5, 3), padding=(2, 1)), (4, 9, 12)),
    "a downsampler's": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 8, 8)),
    "without padding": (nn.Conv2d(4, 6, 3), (4, 8, 8)),
    "dilated": (nn.Conv2d(4, 6, 3, padding=1, dilation=2), (4, 8, 8)),
    "part of more": (PartOfMore(4, 6, 3, padding=1), (4, 9, 8)),
}


def sets_for(base: BaseLayers) -> list[AdapterSet]:
    """Return no LoRA, one, another of another rank, and both together."""
    first, second = made_lora(base, 1, ends=("0",)), made_lora(base, 2, rank=2, alpha=1.0, ends=("0",))
    return [
        (),
        (WeightedLora(first, 0.8),),
        (WeightedLora(second),),
        (WeightedLora(first, 1.5), WeightedLora(second, -0.5)),
    ]


def patched(network: nn.Module, adapters: AdapterSet, inputs: Tensor) -> Tensor:
    patch = WeightPatch(network, "unet")
    patch.hold(adapters)
    outputs: Tensor = network(inputs)
    patch.hold(())
    return outputs


@pytest.mark.parametrize("kind", LAYERS)
@torch.inference_mode()
def test_each_row_of_mixed_batch_equals_patched_weights(kind: str) -> None:
    layer, shape = LAYERS[kind]
    network = nn.Sequential(layer).eval()
    base = layers_of("any", {"unet": network})
    sets = [*sets_for(base), ()]
    inputs = torch.randn(2 * len(sets), *shape, generator=torch.Generator().manual_seed(0))
    rows = [row_updates(adapters, "unet", torch.device("cpu"), torch.float32) for adapters in sets]

    stacked = stack_adapters(rows, 2)

    with adapted(network, stacked):
        first, together = network(2 * inputs), network(inputs)

    # The second call does not see state of the first.
    assert not torch.equal(first, together)
    for place, adapters in enumerate(sets):
        own = slice(2 * place, 2 * place + 2)
        torch.testing.assert_close(together[own], patched(network, adapters, inputs[own]), rtol=0, atol=2e-5)
    plain = network(inputs)
    assert torch.equal(together[:2], plain[:2]) and torch.equal(together[-2:], plain[-2:])
    assert (together[2:-2] - plain[2:-2]).abs().max() > 0.05


def test_layers_are_their_own_again_whatever_happens() -> None:
    network = nn.Sequential(nn.Linear(6, 5)).eval()
    (_, adapters, *_) = sets_for(layers_of("any", {"unet": network}))
    rows = row_updates(adapters, "unet", torch.device("cpu"), torch.float32)
    inputs = torch.ones(1, 6)
    plain = network(inputs)

    with pytest.raises(RuntimeError), adapted(network, rows):
        network(torch.ones(1, 7))

    assert torch.equal(network(inputs), plain)
    assert "forward" not in network[0].__dict__
    with pytest.raises(KeyError, match="no layer '0'"), adapted(nn.Sequential(), rows):
        pass


@torch.inference_mode()
def test_rows_of_a_set_are_made_once(model: DiffusionModel, base: BaseLayers) -> None:
    rows = RowUpdates(model.device, model.dtype)
    adapters = (WeightedLora(made_lora(base, 1)),)

    first = rows.of(adapters, "unet")

    assert rows.of((WeightedLora(made_lora(base, 1)),), "unet") is first
    assert rows.of((WeightedLora(made_lora(base, 1), 0.5),), "unet") is not first
    assert rows.of(adapters, "text_encoder") is not first
    assert rows.of((), "unet") is None


def test_a_convolutions_rows_are_stacked_with_zeros_for_missing_ranks() -> None:
    base = layers_of("any", {"unet": nn.Sequential(nn.Conv2d(4, 6, 3))})
    rows = [row_updates(one, "unet", torch.device("cpu"), torch.float32) for one in sets_for(base)]

    stacked = stack_adapters(rows, 1)

    assert isinstance(stacked, PerSampleAdapters)
    # The first request has no LoRA.
    assert stacked.updates["0"].rows == slice(1, 4)
    assert stacked.updates["0"].down.shape == (3, 5, 4, 3, 3)
    assert stacked.updates["0"].down[0, :3].any() and not stacked.updates["0"].down[0, 3:].any()


@torch.inference_mode()
def test_prompts_are_remembered_by_the_loras_of_the_text_encoder(model: DiffusionModel, base: BaseLayers) -> None:
    memo = PromptMemo(model, 8)
    with_text = (WeightedLora(made_lora(base, 1)),)
    without_text = (WeightedLora(made_lora(base, 2, components=["unet"])),)

    plain = memo.encode("a red star")
    changed = memo.encode("a red star", adapters=with_text)

    assert memo.encode("a red star", adapters=without_text) is plain
    assert memo.encode("a red star", adapters=with_text) is changed
    assert (changed.conditioning.states - plain.conditioning.states).abs().max() > 0.01
    assert torch.equal(model.encode_prompt("a red star").conditioning.states, plain.conditioning.states)
    patch = WeightPatch(model.adaptable["text_encoder"], "text_encoder")
    patch.hold(with_text)
    patched_states = model.encode_prompt("a red star").conditioning.states
    patch.hold(())
    assert torch.equal(changed.conditioning.states, patched_states)


@torch.inference_mode()
def test_both_text_encoders_of_sdxl_are_changed(xl_model: DiffusionModel, xl_base: BaseLayers) -> None:
    memo = PromptMemo(xl_model, 8)
    plain = memo.encode("a red star").conditioning.states

    changed = [
        memo.encode("a red star", adapters=(WeightedLora(made_lora(xl_base, seed, components=[encoder])),))
        for seed, encoder in enumerate(("text_encoder", "text_encoder_2"))
    ]

    widths = (xl_model.adaptable["text_encoder"].config.hidden_size, plain.shape[-1])
    first, second = (one.conditioning.states for one in changed)
    assert not torch.equal(first[..., : widths[0]], plain[..., : widths[0]])
    assert torch.equal(first[..., widths[0] :], plain[..., widths[0] :])
    assert torch.equal(second[..., : widths[0]], plain[..., : widths[0]])

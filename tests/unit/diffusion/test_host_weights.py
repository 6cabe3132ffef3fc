"""Text encoders in host memory: each layer is copied for its call, and prompts keep their bits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lab.fixtures.checkpoints import write_flow_checkpoint
from pentimento.devices.choices import WeightStorage
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import layers_of
from pentimento.diffusion.loras.lora import WeightedLora
from pentimento.diffusion.prompts import PromptMemo
from pentimento.diffusion.weight_memory import is_in_host_memory, keep_in_host_memory
from tests.unit.diffusion.loras.made_loras import made_lora
from tests.unit.diffusion.specs import load

CPU = torch.device("cpu")
FAMILIES = ["checkpoint", "xl_checkpoint", "flux_checkpoint", "z_image_checkpoint", "sana_checkpoint"]
FAMILIES += ["qwen_image_checkpoint", "klein_checkpoint", "flux_2_checkpoint"]


def addresses(network: nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in (*network.named_parameters(), *network.named_buffers())}


@contextmanager
def copied_layers(network: nn.Module) -> Iterator[list[set[str]]]:
    """Record the names of the weights that are copies, at each call of a module without parts."""
    kept, seen = addresses(network), list[set[str]]()

    def record(*_: object) -> None:
        seen.append({name for name, address in addresses(network).items() if address != kept[name]})

    hooks = [one.register_forward_pre_hook(record) for one in network.modules() if not list(one.children())]
    yield seen
    for hook in hooks:
        hook.remove()


@torch.inference_mode()
@pytest.mark.parametrize("fixture", FAMILIES)
def test_prompts_of_encoders_in_host_memory_keep_their_bits(fixture: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(fixture)
    plain, moved = load(directory), load_model(directory, CPU, torch.float32, encoders_in_host=True)

    expected, found = (model.encode_prompt("a red circle").conditioning for model in (plain, moved))

    assert [one.component for one in moved.weights if one.in_host_memory]
    for one, other in zip(expected.parts, found.parts, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]


@torch.inference_mode()
def test_packed_and_weighted_encoders_in_host_memory_keep_their_bits(tmp_path: Path) -> None:
    directory = write_flow_checkpoint(tmp_path / "flow", t5=True, max_sequence_length=3)
    plain, moved = (load_model(directory, CPU, torch.float32, WeightStorage.INT8, None, host) for host in (False, True))

    expected, found = (model.encode_prompt("a red circle").conditioning for model in (plain, moved))

    assert {one.component for one in moved.weights if one.in_host_memory} == {
        "text_encoder",
        "text_encoder_2",
        "text_encoder_3",
    }
    assert torch.equal(expected.states, found.states)


@torch.inference_mode()
def test_lora_of_encoder_in_host_memory_keeps_its_bits(checkpoint: Path) -> None:
    plain, moved = load(checkpoint), load_model(checkpoint, CPU, torch.float32, encoders_in_host=True)
    adapters = (WeightedLora(made_lora(layers_of(plain.info.family, plain.adaptable), 1)),)

    expected, found = (PromptMemo(model, 2).encode("a dot", adapters=adapters) for model in (plain, moved))

    assert torch.equal(expected.conditioning.states, found.conditioning.states)
    assert not torch.equal(found.conditioning.states, moved.encode_prompt("a dot").conditioning.states)


@torch.inference_mode()
def test_one_layer_is_copied_at_a_time(checkpoint: Path) -> None:
    encoder: Any = load_model(checkpoint, CPU, torch.float32, encoders_in_host=True).adaptable["text_encoder"]
    kept = addresses(encoder)

    with copied_layers(encoder) as seen:
        encoder(torch.tensor([[1, 2, 3]]))

    layers = {".".join(name.split(".")[:3]) if "layers" in name else name.split(".")[0] for name in set.union(*seen)}
    assert {f"encoder.layers.{number}" for number in range(len(encoder.encoder.layers))} < layers
    for copied in seen:
        assert len({name.split(".")[2] if "layers" in name else name.split(".")[0] for name in copied}) == 1
    assert addresses(encoder) == kept


@torch.inference_mode()
def test_failed_call_drops_copies(checkpoint: Path) -> None:
    encoder: Any = load_model(checkpoint, CPU, torch.float32, encoders_in_host=True).adaptable["text_encoder"]
    kept = addresses(encoder)

    with pytest.raises(IndexError):
        encoder(torch.tensor([[10**6]]))

    assert addresses(encoder) == kept


def test_encoder_in_host_memory_is_not_recorded(xl_checkpoint: Path) -> None:
    moved = load_model(xl_checkpoint, CPU, torch.float32, encoders_in_host=True)

    moved.record_texts(lambda forward: pytest.fail("it was recorded"))

    recorded: list[object] = []
    load(xl_checkpoint).record_texts(recorded.append)
    assert len(recorded) == 2


def test_network_without_hooks_is_not_in_host_memory() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    before = is_in_host_memory(network)

    keep_in_host_memory(network, CPU)

    assert (before, is_in_host_memory(network)) == (False, True)

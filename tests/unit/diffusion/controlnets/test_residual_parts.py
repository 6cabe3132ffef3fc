"""Deliver residuals of a transformer's ControlNet while its later blocks compute."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import SD3ControlNetModel

from lab.fixtures.checkpoints import write_flow_controlnet
from lab.fixtures.local_control import Control, LocalControlNets
from pentimento.diffusion.controlnets import ControlNet, ControlSetting, ControlStep, load_controlnet, summed
from pentimento.diffusion.controlnets.transformer_controlnet import part_sizes
from pentimento.diffusion.families import Conditioning, ControlResiduals, DenoiserInput

BLOCKS = 5
Told = list[list[ControlResiduals]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flow_controlnet(tmp_path_factory.mktemp("controlnet") / "five", num_layers=BLOCKS)


@pytest.fixture(scope="module")
def network(directory: Path) -> ControlNet:
    return load_controlnet(directory, torch.device("cpu"), torch.float32)


def inputs(seed: int) -> DenoiserInput:
    generator = torch.Generator().manual_seed(seed)
    texts = Conditioning(torch.randn(2, 6, 40, generator=generator), torch.randn(2, 36, generator=generator))
    return DenoiserInput(torch.randn(2, 8, 8, 8, generator=generator), torch.tensor(500.0), texts)


def condition(seed: int) -> torch.Tensor:
    return torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(100 + seed))


def step(network: ControlNet, seed: int, setting: ControlSetting) -> ControlStep:
    return ControlStep(inputs(seed), network.embed(condition(seed), 2), setting)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, [1]), (2, [1, 1]), (6, [1, 2, 3]), (12, [1, 2, 4, 5]), (19, [1, 2, 4, 8, 4])]
)
def test_each_part_has_twice_the_blocks_of_the_one_before(count: int, sizes: list[int]) -> None:
    assert part_sizes(count) == sizes


def test_parts_are_the_first_residuals_of_the_whole_in_order(network: ControlNet) -> None:
    told: Told = []
    steps = [step(network, 1, ControlSetting()), step(network, 2, ControlSetting(0.5))]

    whole = network.residuals(steps, lambda so_far: told.append(list(so_far)))

    assert [[(len(one.block_residuals), one.awaited_count) for one in part] for part in told] == [
        [(1, 4), (1, 4)],
        [(3, 2), (3, 2)],
    ]
    assert [(len(one.block_residuals), one.awaited_count) for one in whole] == [(5, 0), (5, 0)]
    for part in told:
        for one, all_of_it in zip(part, whole, strict=True):
            pairs = zip(one.block_residuals, all_of_it.block_residuals, strict=False)
            assert all(torch.equal(own, other) for own, other in pairs)


@torch.inference_mode()
def test_the_whole_has_the_bits_of_diffusers_own_pass(directory: Path, network: ControlNet) -> None:
    theirs = SD3ControlNetModel.from_pretrained(directory, torch_dtype=torch.float32)
    seen = inputs(3)
    pooled = seen.conditioning.pooled
    assert pooled is not None

    wanted = theirs(
        hidden_states=seen.latents,
        controlnet_cond=condition(3),
        encoder_hidden_states=seen.conditioning.states,
        pooled_projections=torch.zeros_like(pooled),
        timestep=seen.timesteps.expand(2),
        conditioning_scale=0.7,
        return_dict=False,
    )[0]

    found = network.residuals([step(network, 3, ControlSetting(0.7))])[0].block_residuals
    assert len(found) == BLOCKS
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_sum_of_parts_ends_at_shortest_part(network: ControlNet) -> None:
    first, second = (network.residuals([step(network, seed, ControlSetting())])[0] for seed in (1, 2))
    begun = replace(second, block_residuals=second.block_residuals[:3], awaited_count=2)

    found = summed([first, begun])

    assert (len(found.block_residuals), found.awaited_count) == (3, 2)
    whole = summed([first, second]).block_residuals
    assert all(torch.equal(one, other) for one, other in zip(found.block_residuals, whole, strict=False))
    with pytest.raises(ValueError, match="residuals of 5 and of 4 blocks"):
        summed([first, replace(begun, awaited_count=1)])


def test_local_controlnets_deliver_parts_of_sum(network: ControlNet) -> None:
    seen: list[ControlResiduals | None] = []
    done = threading.Event()

    def heard() -> None:
        seen.append(source.take(0))
        if seen[-1] is not None and not seen[-1].awaited_count:
            done.set()

    beside = LocalControlNets(wake=heard)
    try:
        controls = [Control(network, condition(seed), 2) for seed in (1, 2)]
        source = beside.source(controls, step_count=4)
        _when_asked(beside, lambda: source.ask(0, inputs(1)))
        assert done.wait(60.0)
    finally:
        beside.close()

    counts = [len(one.block_residuals) for one in seen if one is not None]
    assert counts == [1, 3, 5]
    wanted = summed(
        [
            network.residuals([ControlStep(inputs(1), network.embed(condition(seed), 2), ControlSetting())])[0]
            for seed in (1, 2)
        ]
    )
    whole = seen[-1]
    assert whole is not None
    assert all(torch.equal(one, other) for one, other in zip(whole.tensors, wanted.tensors, strict=True))


def _when_asked(beside: LocalControlNets, ask: Callable[[], None]) -> None:
    """Let the thread begin after the request for the step."""
    go_on = threading.Event()
    beside._pool.submit(go_on.wait, 60.0)
    ask()
    go_on.set()

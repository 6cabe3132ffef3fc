"""Test paced devices: real processes and streams generate the images that the same numbers give in one process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from lab.emulation.pace import DevicePace, read_pace
from lab.emulation.paced_controlnets.network import PacedControlNet
from lab.emulation.paced_controlnets.wiring import paced_controlnet_digest
from lab.emulation.paced_worker.loras import paced_digest
from lab.emulation.paced_worker.model import PacedModel
from lab.fixtures.controlled_generation import ControlledCase, conditions_for
from lab.fixtures.controlnet_serving import (
    PACED,
    ControlledByService,
    ServedControlNet,
    replica_process,
    serving_together,
    shared_folder,
)
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_process import worker_process
from lab.fixtures.worker_under_test import await_serving
from pentimento.diffusion.controlnets import ControlSetting, ControlStep, summed
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart, model_input, prepare, take_step
from pentimento.diffusion.families.model import ControlResiduals, DenoiserEncoding
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, LoraSelection, Scheduler
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.cuda import tensor_over
from pentimento.wire.tensors import tensor_from_proto

PACE = """
name = "little"
family = "stable_diffusion"
steps = 6
width_px = 64
height_px = 64
text_width = 16
block_channels = [64, 128]
encode_ms = { 1 = 2.0 }
decode_ms = { 1 = 2.0 }
patch_ms = 5.0
[[controlnets]]
name = "first"
step_ms = { 1 = 2.0 }
[[controlnets]]
name = "second"
step_ms = { 1 = 8.0 }
[[loras]]
name = "ink"
load_s = 0.01
latest_start_fraction = 0.5
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = (ControlSetting(0.7, end_fraction=0.5), ControlSetting(1.3, start_fraction=0.2))
CONDITIONS = conditions_for(2, 64, 64)
CASE = Case("anything", "", Scheduler.DDIM, seed=3, steps=6, guidance_scale=3.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[ControlledByService]:
    """Start a paced worker, and a replica for each ControlNet."""
    with ExitStack() as stack:
        folder = stack.enter_context(shared_folder())
        path = folder / "pace.toml"
        path.write_text(PACE)
        addresses = [
            stack.enter_context(replica_process(folder, f"c{number}", PACED, "--controlnets", str(path)))
            for number in range(2)
        ]
        named = [
            ControlNetSelection(controlnet.name, b"", digest=paced_controlnet_digest(controlnet))
            for controlnet in read_pace(path).controlnets
        ]
        controlnets = [ServedControlNet(one, address) for one, address in zip(named, addresses, strict=True)]
        async with serving_together(stack.enter_context(paced_worker(folder)), controlnets) as together:
            yield together


def paced_worker(folder: Path) -> AbstractContextManager[str]:
    shared, module = ("--shared-memory-dir", str(folder / "shared")), "lab.emulation.paced_worker"
    return worker_process(folder / "pace.toml", *shared, module=module)


@torch.inference_mode()
def in_one_process(pace: DevicePace, case: Case, settings: Sequence[ControlSetting]) -> Tensor:
    """Generate the same image step by step, and call its ControlNets in turn."""
    model = PacedModel(pace, torch.float16)
    spec = GenerationSpec(
        case.prompt, "", pace.name, 64, 64, case.steps, case.guidance_scale, case.scheduler, case.seed
    )
    denoising = prepare(model, PromptMemo(model, 4), DenoisingRequest(spec, NoiseStart()))
    rows = denoising.row_count
    networks = [PacedControlNet(pace, controlnet, "", torch.float16) for controlnet in pace.controlnets]
    embedded = [network.embed(pixels, rows) for network, pixels in zip(networks, CONDITIONS, strict=True)]
    while not denoising.done:
        inputs, step = model_input(model, denoising), denoising.state.step_index
        acting = [
            network.residuals([ControlStep(inputs, told, setting)])[0]
            for network, told, setting in zip(networks, embedded, settings, strict=False)
            if setting.acts_at(step, case.steps)
        ]
        stamps = ControlResiduals(tuple(part[:, :1, :1, :1] for part in summed(acting).tensors))
        prediction = model.decode(
            type(inputs)(inputs.latents, inputs.timesteps, inputs.conditioning, stamps),
            DenoiserEncoding((inputs.latents,)),
        )
        take_step(model, denoising, prediction)
    return denoising.state.latent


@pytest.mark.parametrize("settings", [SETTINGS, SETTINGS[1:], ()], ids=["both", "one", "none"])
async def test_residuals_come_from_their_replicas_in_their_steps(
    served: ControlledByService, tmp_path_factory: pytest.TempPathFactory, settings: tuple[ControlSetting, ...]
) -> None:
    path = tmp_path_factory.mktemp("pace") / "pace.toml"
    path.write_text(PACE)

    found = await served.controlled(ControlledCase(CASE, settings), CONDITIONS)

    assert torch.equal(found, in_one_process(read_pace(path), CASE, settings))


async def test_pair_of_paced_workers_generates_the_same_image(served: ControlledByService) -> None:
    note = ""
    with shared_folder() as folder:
        (folder / "pace.toml").write_text(PACE)
        with paced_worker(folder) as address:
            async with open_channel(address, RpcChannelSettings()) as channel:
                await await_serving(channel)
            paired = served.with_peer("p", address)
            # A busy worker may be too late for every step.
            while "generated by two workers" not in note:
                result = await paired.generated(ControlledCase(CASE, SETTINGS), CONDITIONS)
                note = "".join(result.notes)
        wanted = in_one_process(read_pace(folder / "pace.toml"), CASE, SETTINGS)

    assert torch.equal(tensor_over(tensor_from_proto(result.final_latents)), wanted)


async def test_control_changes_a_paced_image(served: ControlledByService) -> None:
    controlled = await served.controlled(ControlledCase(CASE, SETTINGS), CONDITIONS)
    free = await served.controlled(ControlledCase(CASE, ()), CONDITIONS)

    assert float((controlled - free).abs().max()) > 0.01


async def test_paced_lora_changes_only_its_image(
    served: ControlledByService, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("pace") / "pace.toml"
    path.write_text(PACE)
    (lora,) = read_pace(path).loras
    selection = LoraSelection(lora.name, 2.0, paced_digest(lora))

    plain = await served.controlled(ControlledCase(CASE, ()), CONDITIONS)
    styled = await served.generated(ControlledCase(CASE, ()), CONDITIONS, [selection])
    again = await served.controlled(ControlledCase(CASE, ()), CONDITIONS)

    assert styled.lora_patch_step == 0
    assert float((tensor_over(tensor_from_proto(styled.final_latents)) - plain).abs().max()) > 0.01
    assert torch.equal(again, plain)

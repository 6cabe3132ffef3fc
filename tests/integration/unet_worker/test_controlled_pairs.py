"""Pictures under ControlNets that two workers paint, each with streams of its own: those of one worker and of
diffusers, whatever becomes of the second and of replicas. Workers and replicas are processes."""

import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from lab.fixtures.checkpoints import SIDE_PX as FLOW_SIDE_PX
from lab.fixtures.checkpoints import write_flow_checkpoint, write_flow_controlnet
from lab.fixtures.controlled_painting import ControlledByDiffusers, ControlledCase, conditions_for
from lab.fixtures.controlnet_serving import ControlledByService, controlled_by_service
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.worker_process import worker_process
from lab.fixtures.worker_under_test import await_serving
from pentimento.api.controlnet.v1 import controlnet_service_pb2 as controlnet_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.clients.controlnet import ControlNetClient, ResidualStream, ResidualStreamRequest
from pentimento.clients.guidance_half import GuidanceHalfClient, HalfControlNet
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import InvalidArgument, Unavailable
from pentimento.domain.generation import ControlNetSelection, Scheduler
from pentimento.policies import latent_pairing
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.device import outgoing_tensor
from pentimento.wire.tensors import UNBOUND, tensor_from_proto
from pentimento.wire.torch_tensors import tensor_from_wire
from tests.integration.unet_worker import test_pairs
from tests.integration.unet_worker.conftest import at_step
from tests.integration.unet_worker.test_controlnets import (
    ACTING,
    CASE,
    CONDITIONS,
    EDGES,
    LAYOUT,
    WEIGHTS,
    Replica,
    all_closed,
    at_least,
    edges,
    request_for,
    selection,
    serving,
    start_replica,
    step_counts,
)
from tests.integration.unet_worker.test_pairs import (
    OPEN_S,
    STEPS,
    TOLERANCE,
    Painted,
    Parts,
    Peer,
    difference,
    freed,
    half_of,
    painted_for,
    peers_come_second,
)
from tests.torch_threads import one_thread  # noqa: F401 (a fixture of this module)

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Fixtures of this module, too.
parts, peer = test_pairs.parts, test_pairs.peer
patient, impatient = test_pairs.patient, test_pairs.impatient

ALL = f"painted by a pair: {STEPS} of {STEPS} steps with p"


@pytest.fixture
def unhurried(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs go on however slow this machine is now, and however long streams take to open."""
    monkeypatch.setattr(latent_pairing, "_OPENING_PATIENCE_S", 60.0)


@pytest.fixture(scope="module")
def started() -> Iterator[list[Replica]]:
    made: list[Replica] = []
    yield made
    for replica in made:
        replica.process.kill()
        replica.process.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def replicas(parts: Parts, started: list[Replica]) -> list[Replica]:
    """Two that serve."""
    return await at_least(2, parts.folder, started)


async def paint(
    parts: Parts,
    peer_address: str,
    controlnets: Sequence[ControlNetSelection],
    replicas: Sequence[Replica],
    pipelined_from: int = 0,
) -> Painted:
    worker = parts.worker
    request = request_for(worker, controlnets, [replica.address for replica in replicas], pipelined_from)
    if peer_address:
        request.latent_parallel_peer.CopyFrom(pb.LatentParallelPeer(worker_id="p", address=peer_address))
    return await painted_for(request, worker)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("acting", ACTING)
async def test_a_pair_paints_the_picture_of_one_worker_and_of_diffusers(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
    acting: str,
) -> None:
    settings = ACTING[acting]
    controlnets = [
        selection(name, pixels, setting) for (name, setting), pixels in zip(settings.items(), CONDITIONS, strict=False)
    ]
    alone = await paint(parts, "", controlnets, replicas)

    paired = await paint(parts, peer.address, controlnets, replicas)

    assert (alone.note, paired.note) == ("", ALL)
    assert difference(paired, alone) <= TOLERANCE
    reference = ControlledByDiffusers(WEIGHTS / "tiny-heavy", [WEIGHTS / name for name in settings])
    theirs = reference.controlled(ControlledCase(CASE, tuple(settings.values())), CONDITIONS[: len(settings)])
    assert float((paired.latents - theirs).abs().max()) <= TOLERANCE
    assert difference(paired, await paint(parts, peer.address, [], [])) > 0.1
    assert parts.directory.region_count() == 0
    await all_closed(replicas)


@pytest.mark.usefixtures("unhurried")
async def test_both_halves_of_the_residuals_are_computed_at_once_on_two_replicas(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
) -> None:
    await paint(parts, peer.address, [edges()], replicas)
    await freed(parts, peer)
    await all_closed(replicas)
    before = await step_counts(replicas)

    paired = await paint(parts, peer.address, [edges()], replicas)

    after = await step_counts(replicas)
    assert paired.note == ALL
    assert [now - then for then, now in zip(before, after, strict=True)] == [STEPS, STEPS]


@pytest.mark.usefixtures("unhurried")
async def test_residuals_a_step_old_are_painted_with_by_one_worker(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
) -> None:
    alone = await paint(parts, "", [edges()], replicas, 4)

    told = await paint(parts, peer.address, [edges()], replicas, 4)

    assert told.note == ""
    assert torch.equal(told.latents, alone.latents)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("which", [0, 1], ids=["the worker's", "the peer's"])
async def test_a_replica_that_is_lost_costs_a_replay(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
    which: int,
) -> None:
    alone = await paint(parts, "", [edges()], replicas)

    def lose() -> None:
        replicas[which].process.kill()
        replicas[which].process.wait()

    with at_step(5, lose):
        paired = await paint(parts, peer.address, [edges()], replicas)

    assert paired.note == ALL
    assert difference(paired, alone) <= TOLERANCE


@pytest.fixture
def told_modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which halves the streams of the worker in this process were opened for."""
    modes: list[str] = []
    open_stream = ControlNetClient.open_stream

    async def told(client: ControlNetClient, request: ResidualStreamRequest, *rest: Any) -> ResidualStream:
        modes.append(controlnet_pb.GuidanceMode.Name(request.guidance_mode).removeprefix("GUIDANCE_MODE_"))
        return await open_stream(client, request, *rest)

    monkeypatch.setattr(ControlNetClient, "open_stream", told)
    return modes


@pytest.mark.usefixtures("unhurried")
async def test_replicas_are_told_which_halves_their_residuals_are_of(
    parts: Parts, peer: Peer, replicas: list[Replica], told_modes: list[str]
) -> None:
    await paint(parts, "", [edges()], replicas)
    await paint(parts, peer.address, [edges()], replicas)
    half = half_of(parts, controlnets=[HalfControlNet(edges(), [replicas[0].address])])
    stream = await GuidanceHalfClient(parts.worker.channel).open_stream(half, 1, OPEN_S)
    await stream.predict(0, 900.0, outgoing_tensor(torch.zeros(latent_shape(parts)), UNBOUND))
    stream.close()

    assert told_modes == ["BOTH_HALVES", "CONDITIONAL_ONLY", "UNCONDITIONAL_ONLY"]


def latent_shape(parts: Parts) -> tuple[int, ...]:
    return test_pairs.halves_of(parts).latent_shape(test_pairs.SIDE_PX, test_pairs.SIDE_PX)[1]


@pytest_asyncio.fixture(loop_scope="module")
async def narrow_replica(parts: Parts) -> AsyncIterator[Replica]:
    """One that holds a single stream."""
    replica = start_replica(parts.folder, "--max-streams", "1")
    await serving(replica)
    yield replica
    replica.process.kill()
    replica.process.wait()


@pytest.mark.usefixtures("impatient")
async def test_a_peer_without_a_replica_is_given_up_and_what_it_lacked_is_not_kept_from_its_worker(
    parts: Parts,
    peer: Peer,
    narrow_replica: Replica,
) -> None:
    """The worker has the only credit for its row; it needs that one for both rows."""
    alone = await paint(parts, "", [edges()], [narrow_replica])
    await all_closed([narrow_replica])

    with peers_come_second():
        paired = await paint(parts, peer.address, [edges()], [narrow_replica])

    assert paired.paired_steps < STEPS
    assert difference(paired, alone) <= TOLERANCE


PNG = edges().conditioning_image
HERE = ["unix:/nowhere"]


def half_with(**changes: Any) -> HalfControlNet:
    return HalfControlNet(replace(edges(), **changes), HERE)


BAD_CONTROLNETS: dict[str, tuple[HalfControlNet, str]] = {
    "no name": (half_with(name="../edges"), "controlnet.name"),
    "no digest": (half_with(digest=""), "controlnet.digest"),
    "a scale that is no number": (half_with(conditioning_scale=float("nan")), "controlnet.conditioning_scale"),
    "a scale beyond all": (half_with(conditioning_scale=101.0), "controlnet.conditioning_scale"),
    "a share that begins nowhere": (half_with(start_fraction=-0.1), "controlnet.start_fraction"),
    "a share that ends before it begins": (half_with(start_fraction=0.6, end_fraction=0.5), "controlnet.end_fraction"),
    "no image": (half_with(conditioning_image=b""), "controlnet.conditioning_image"),
    "a part of an image": (half_with(conditioning_image=PNG[:20]), "controlnet.conditioning_image"),
    "an image of another size": (
        HalfControlNet(selection(EDGES, CONDITIONS[0][:, :, :32, :32], ControlSetting()), HERE),
        "controlnet.conditioning_image",
    ),
    "nowhere": (HalfControlNet(edges(), []), "addresses"),
    "everywhere": (HalfControlNet(edges(), HERE * 257), "addresses"),
    "no address": (HalfControlNet(edges(), [""]), "addresses"),
    "an endless address": (HalfControlNet(edges(), ["a" * 1025]), "addresses"),
    "a latent": (
        HalfControlNet(edges(), HERE, outgoing_tensor(torch.zeros(1, 4, 8, 8), UNBOUND)),
        "encoded_conditioning",
    ),
}


@pytest.mark.parametrize("what", BAD_CONTROLNETS)
async def test_a_controlnet_that_no_half_can_have_is_refused_by_its_field(parts: Parts, what: str) -> None:
    bad, field = BAD_CONTROLNETS[what]
    good = HalfControlNet(selection(LAYOUT, CONDITIONS[1], ControlSetting()), HERE)

    with pytest.raises(InvalidArgument) as refused:
        half = half_of(parts, controlnets=[good, bad])
        await GuidanceHalfClient(parts.worker.channel).open_stream(half, 1, OPEN_S)

    assert [violation.field for violation in refused.value.violations] == [f"open.controlnets[1].{field}"]
    assert parts.worker.model.halves.open_count == 0


async def test_more_controlnets_than_a_half_may_have_are_refused(parts: Parts) -> None:
    half = half_of(parts, controlnets=[half_with()] * 17)

    with pytest.raises(InvalidArgument) as refused:
        await GuidanceHalfClient(parts.worker.channel).open_stream(half, 1, OPEN_S)

    assert [violation.field for violation in refused.value.violations] == ["open.controlnets"]


async def test_images_as_large_as_a_request_may_bring_are_read(parts: Parts) -> None:
    """Nine megabytes: judged as an image, and not refused as a message."""
    large = half_with(conditioning_image=b"x" * (9 << 20))

    with pytest.raises(InvalidArgument) as refused:
        await GuidanceHalfClient(parts.worker.channel).open_stream(half_of(parts, controlnets=[large]), 1, OPEN_S)

    assert refused.value.violations[0].field == "open.controlnets[0].controlnet.conditioning_image"


# The last ones: what is lost is not started again.
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_peer_that_is_lost_costs_nothing_but_its_help(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
    how: signal.Signals,
) -> None:
    alone = await paint(parts, "", [edges()], replicas)

    with at_step(5, lambda: peer.lose(how)):
        paired = await paint(parts, peer.address, [edges()], replicas)

    assert difference(paired, alone) <= TOLERANCE
    assert paired.paired_steps < STEPS
    peer.process.kill()
    await all_closed(replicas)


async def test_without_any_replica_left_there_is_no_picture(
    parts: Parts,
    peer: Peer,
    replicas: list[Replica],
) -> None:
    def lose() -> None:
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()

    with pytest.raises(Unavailable) as caught, at_step(5, lose):
        await paint(parts, peer.address, [edges()], replicas)

    assert caught.value.reason == "CONTROLNET_LOST"


@dataclass
class Flows:
    """A model of SD3's class and its ControlNet, on one worker, on two, and by diffusers."""

    alone: ControlledByService
    paired: ControlledByService
    theirs: ControlledByDiffusers


@asynccontextmanager
async def flow_pair(folder: Path) -> AsyncIterator[Flows]:
    model = write_flow_checkpoint(folder / "model", max_sequence_length=12)
    controlnet = write_flow_controlnet(folder / "controlnet", seed=1)
    with ExitStack() as stack:
        address = stack.enter_context(worker_process(model))
        async with controlled_by_service(model, [controlnet]) as alone:
            async with open_channel(address, RpcChannelSettings()) as channel:
                await await_serving(channel)
            paired = alone.with_peer("p", address)
            yield Flows(alone, paired, ControlledByDiffusers(model, [controlnet]))


async def test_a_condition_that_is_a_latent_goes_to_each_worker_with_the_noise_of_its_row(tmp_path: Path) -> None:
    case = Case("a red circle", "blurred", Scheduler.FLOW_MATCH_EULER, seed=3, steps=5, guidance_scale=4.0)
    controlled, conditions = ControlledCase(case, (ControlSetting(0.8),)), conditions_for(1, FLOW_SIDE_PX, FLOW_SIDE_PX)
    note, found = "", torch.zeros(0)
    async with flow_pair(tmp_path) as flows:
        # Of two busy workers one may be too late for every step of the other.
        while "painted by a pair" not in note:
            result = await flows.paired.painted(controlled, conditions)
            note, found = "".join(result.notes), latents_of(result)
        by_one = await flows.alone.painted(controlled, conditions)
    alone = latents_of(by_one)

    assert float((found - alone).abs().max()) <= TOLERANCE
    theirs = flows.theirs.controlled(controlled, conditions)
    assert float((found - theirs).abs().max()) <= TOLERANCE
    # What a pair waits for is not learned as what a worker does.
    assert by_one.HasField("residual_wait_share") and not result.HasField("residual_wait_share")


def latents_of(result: pb.AttemptResult) -> Tensor:
    return tensor_from_wire(tensor_from_proto(result.final_latents))

"""Steps over lines in shared memory: kept residuals, frames of other streams, and a host without room for a line."""

import os

import pytest

from lab.fixtures.step_streams import answer_to, whole_answer
from pentimento.clients.controlnet import ControlNetClient
from pentimento.domain.errors import Aborted
from pentimento.domain.generation import Attempt
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.wire.tensors import UNBOUND
from tests.integration.controlnet_svc.conftest import (
    EDGES,
    OPEN_S,
    Service,
    assert_equal,
    latents,
    of_diffusers,
    request_for,
    tensors_of,
)


async def test_kept_residuals_stay_while_later_ones_come(service: Service) -> None:
    sent = [outgoing_tensor(latents(seed=step), UNBOUND) for step in range(3)]
    async with open_channel(service.address, RpcChannelSettings()) as channel:
        stream = await ControlNetClient(channel, service.directory, lined=False).open_stream(request_for(), 1, OPEN_S)

        stream.ask(0, 900.0, sent[0], keeps_from=0)
        stream.ask(1, 500.0, sent[1], keeps_from=0)
        received = [await whole_answer(stream, 0), await whole_answer(stream, 1)]
        stream.ask(2, 100.0, sent[2], keeps_from=0)
        received.append(await whole_answer(stream, 2))

        # Both slots are kept: what comes meanwhile goes in chunks.
        assert [one.ack is not None for one in received] == [True, True, False]
        for step, (one, timestep) in enumerate(zip(received, (900.0, 500.0, 100.0), strict=True)):
            assert_equal(tensors_of(one), of_diffusers(EDGES, timestep, 1.0, seed=step))
        stream.close()


async def test_line_with_all_slots_kept_ends_its_stream(service: Service) -> None:
    stream = await service.client.open_stream(request_for(), 1, OPEN_S)
    sent = outgoing_tensor(latents(), UNBOUND)
    for step in range(2):
        stream.ask(step, 500.0, sent, keeps_from=0)
        await whole_answer(stream, step)

    stream.ask(2, 500.0, sent, keeps_from=0)

    with pytest.raises(Aborted):
        await whole_answer(stream, 2)
    assert service.process.controlnets.compute.step_count > 0


async def test_frame_of_another_stream_on_a_line_is_refused(service: Service) -> None:
    """Any holder of the line can write it: its binding tells streams apart."""
    stream = await service.client.open_stream(request_for(), 1, OPEN_S)
    other = await service.client.open_stream(request_for(attempt=Attempt("other", 1, 8, "f", 1, "t")), 1, OPEN_S)
    assert stream._line is not None and other._line is not None
    ours, theirs = stream._line._line, other._line._line
    ours._outward, theirs._outward = theirs._outward, ours._outward

    stream.ask(0, 500.0, outgoing_tensor(latents(), UNBOUND), keeps_from=0)

    with pytest.raises(Aborted) as caught:
        await whole_answer(other, 0)
    assert caught.value.reason == "STALE_FRAME"


async def test_steps_go_by_the_stream_where_the_line_is_not_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkfifo", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    stream = await service.client.open_stream(request_for(), 1, OPEN_S)
    received = await answer_to(stream, 0, 500.0, outgoing_tensor(latents(), UNBOUND))

    assert not stream.lined
    assert_equal(tensors_of(received), of_diffusers(EDGES, 500.0, 1.0))
    assert service.directory.region_count() == 0
    stream.close()

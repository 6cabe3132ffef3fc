"""Test the calls of each role with a token file, and the end of a suite by an interrupt."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.clients.embedder import EmbedderClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.domain.errors import NotFound, PermissionDenied, Unauthenticated
from pentimento.domain.image_request import CacheMode, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.supervisor.state import marked_processes
from tests.e2e.guarded.conftest import Guarded
from tests.support.processes import runs

REQUEST = ImageRequest("a red circle", num_inference_steps=2, cache=CacheMode.OFF)


async def test_user_generates(guarded: Guarded) -> None:
    async with guarded.client(guarded.user) as client:
        image = await client.generate(REQUEST)

    assert image.data


@pytest.mark.parametrize("token", ["", "wrong", "Bearer"])
async def test_generate_without_known_token_is_unauthenticated(guarded: Guarded, token: str) -> None:
    async with guarded.client(token) as client:
        with pytest.raises(Unauthenticated):
            await client.generate(REQUEST)


async def test_service_role_is_not_a_user(guarded: Guarded) -> None:
    async with guarded.client(guarded.service) as client:
        with pytest.raises(PermissionDenied):
            await client.generate(REQUEST)


async def test_request_of_other_tenant_is_not_found(guarded: Guarded) -> None:
    async with guarded.client(guarded.user) as client, guarded.client(guarded.other_user) as stranger:
        image = await client.generate(REQUEST)

        with pytest.raises(NotFound):
            await stranger.get_request(image.provenance.request_id)
        with pytest.raises(NotFound):
            await stranger.cancel(image.provenance.request_id)


async def test_user_may_not_call_internal_services(guarded: Guarded) -> None:
    endpoint = guarded.suite.endpoint
    async with (
        open_channel(endpoint.controller, RpcChannelSettings(), guarded.user) as controller,
        open_channel(endpoint.frontdoor, RpcChannelSettings(), guarded.user) as frontdoor,
        open_channel(
            f"unix:{guarded.suite.state.sockets}/embedder.sock", RpcChannelSettings(), guarded.user
        ) as embedder,
    ):
        for call in (
            ControllerClient(controller).fleet(),
            FrontdoorClient(frontdoor).status(),
            EmbedderClient(embedder).embed_text(["a red circle"]),
        ):
            with pytest.raises(PermissionDenied):
                await call


async def test_admin_sees_the_fleet(guarded: Guarded) -> None:
    expected = ["embedder", "frontdoor", "unet_worker", "unet_worker", "vectordb_gateway"]
    kinds: list[str] = []
    async with open_channel(guarded.suite.endpoint.controller, RpcChannelSettings(), guarded.admin) as channel:
        # A busy process may miss a report, and is listed again after the next one.
        with suppress(TimeoutError):
            async with asyncio.timeout(120):
                while kinds != expected:
                    fleet = await ControllerClient(channel).fleet()
                    kinds = sorted(status.replica.kind.value for status in fleet.replicas)

    assert kinds == expected


def test_no_token_and_no_prompt_in_any_log(guarded: Guarded) -> None:
    logs = "".join(path.read_text() for path in guarded.suite.state.logs.iterdir())

    assert guarded.user not in logs
    assert "a red circle" not in logs


def shared_memory_of(processes: list[psutil.Process], kept: Path) -> set[Path]:
    """Return the mapped files of shared memory, except those in the kept directory."""
    mapped = {Path(mapping.path) for process in processes for mapping in process.memory_maps()}
    return {path for path in mapped if path.is_relative_to("/dev/shm") and not path.is_relative_to(kept)}


def test_interrupt_leaves_nothing_behind(guarded: Guarded) -> None:
    """Keep this test last: it ends the suite."""
    suite = guarded.suite
    processes = marked_processes(suite.state.path)
    shared = shared_memory_of(processes, suite.state.path)

    suite.supervisor.send_signal(signal.SIGINT)

    assert suite.supervisor.wait(120) == 0
    assert len(processes) >= 6
    # Child processes of the services end after their parents.
    _, left = psutil.wait_procs(processes, timeout=60)
    assert not [process for process in left if runs(process)]
    assert not suite.state.sockets.exists()
    assert suite.state.endpoint() is None
    assert not [path for path in shared if path.exists()]

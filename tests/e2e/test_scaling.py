"""Scale services of a running suite during requests with ControlNets: no request is lost, added processes work, and
removed ones drain."""

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import grpc.aio
import pytest
from PIL import Image

from pentimento.clients.controlnet import ControlNetClient
from pentimento.clients.worker import WorkerClient
from pentimento.domain.errors import DeadlineExceeded, Unavailable
from pentimento.domain.image_request import AskedControlNet, CacheMode, ImageRequest
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite
from pentimento.supervisor.scaling import ReplicaFiles

pytestmark = pytest.mark.faults

# Batches of one request: images must be equal to the bit, independent of other requests.
ALONE = {"PENTIMENTO_UNET_WORKER_MAX_BATCH": "1", "PENTIMENTO_CONTROLNET_SVC_MAX_BATCH": "1"}
ADDED = {"unet_worker": "tiny-heavy-1", "controlnet_svc": "controlnet-1", "embedder": "embedder-1"}
CONTROLNETS = ("tiny-controlnet-edges", "tiny-controlnet-layout")


@pytest.fixture(scope="module")
def scaled_suite() -> Iterator[LocalSuite]:
    with local_suite(["--controlnets", "tiny"], environment=ALONE) as running:
        yield running


async def scale(suite: LocalSuite, service: str, count: int) -> tuple[int, str]:
    """Return the exit code and the output of the command."""
    arguments = ("scale", service, str(count), "--state-dir", str(suite.state.path))
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "pentimento.cli", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, b"".join(said).decode()


def asked() -> ImageRequest:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(file, "PNG")
    controlnets = tuple(AskedControlNet(name, file.getvalue()) for name in CONTROLNETS)
    options = {"width_px": 64, "height_px": 64, "num_inference_steps": 8, "seed": 3, "cache": CacheMode.OFF}
    return ImageRequest("a red circle", controlnets=controlnets, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def load(client: AsyncClient, images: list[bytes]) -> AsyncIterator[None]:
    """Send four requests at a time during the block; `images` has the images after it."""
    stopped = asyncio.Event()

    async def keep_asking() -> None:
        while not stopped.is_set():
            images.append((await client.generate(asked())).data)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(keep_asking())
        yield
        stopped.set()


async def worked(suite: LocalSuite, name: str, count_of: Callable[[grpc.aio.Channel], Awaitable[int]]) -> None:
    async with open_channel(f"unix:{suite.state.sockets / name}.sock", RpcChannelSettings()) as channel:
        async with asyncio.timeout(120):
            while True:
                with suppress(Unavailable, DeadlineExceeded):  # a new process may be busy: ask again
                    if await count_of(channel):
                        return
                await asyncio.sleep(0.1)


async def completed_images(channel: grpc.aio.Channel) -> int:
    return (await WorkerClient(channel).status(5.0)).completed_count


async def controlled_steps(channel: grpc.aio.Channel) -> int:
    return (await ControlNetClient(channel).status(5.0)).step_count


async def test_added_processes_work_and_removed_ones_drain(scaled_suite: LocalSuite) -> None:
    images: list[bytes] = []
    async with AsyncClient(scaled_suite.endpoint.public) as client:
        wanted = (await client.generate(asked())).data
        async with load(client, images):
            # One after another, because they share the file of wanted counts.
            answers = [await scale(scaled_suite, service, 2) for service in ADDED]
            assert [code for code, _ in answers] == [0, 0, 0], answers
            await worked(scaled_suite, ADDED["unet_worker"], completed_images)
            await worked(scaled_suite, ADDED["controlnet_svc"], controlled_steps)
            for service in ADDED:
                assert (await scale(scaled_suite, service, 1))[0] == 0

    assert images
    assert set(images) == {wanted}
    there = ReplicaFiles(scaled_suite.state.path).there()
    assert {name: list(status.states) for name, status in there.items()} == {
        "embedder": ["embedder"],
        "controlnet_svc": ["controlnet-0"],
        "unet_worker": ["tiny-heavy-0"],
    }
    assert "did not stop" not in scaled_suite.log("supervisor")


async def test_unknown_service_error_lists_known_services(scaled_suite: LocalSuite) -> None:
    code, said = await scale(scaled_suite, "gateway", 2)

    assert code == 1
    assert "embedder, controlnet_svc, unet_worker" in said

"""Serve a worker with a tiny checkpoint on a Unix socket, in this process: the real server, channel, store and
client."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio
from torch import Tensor

from lab.fixtures.checkpoints import write_checkpoint
from pentimento.clients.worker import WorkerClient
from pentimento.domain.fleet import HeldModel
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker import wiring
from services.unet_worker.attempts.execution import ProgressBridge
from services.unet_worker.models import loader
from services.unet_worker.models.loaded import LoadedModel
from services.unet_worker.models.model_switch import ModelSwitch
from services.unet_worker.models.stored_models import StoredModels
from services.unet_worker.process import WorkerProcess
from services.unet_worker.settings import UnetWorkerSettings
from tests.support.patient_connections import be_patient

# Bounds that a busy machine may exceed, and the pause between progress messages.
PATIENT = {"DONOR_TIMEOUT_S": 120.0, "UPLOAD_TIMEOUT_S": 120.0, "PROGRESS_INTERVAL_S": 0.0}
_tests = count(1)


@dataclass(frozen=True)
class Served:
    """Hold a serving worker with its client and stores. Ids of its requests begin with `prefix`."""

    process: WorkerProcess
    channel: grpc.aio.Channel
    client: WorkerClient
    objects: ObjectStore
    objects_directory: Path
    prefix: str = ""

    @property
    def model(self) -> LoadedModel:
        return self.switch.loaded

    @property
    def switch(self) -> ModelSwitch:
        backend = self.process.worker.loaded
        assert isinstance(backend, ModelSwitch)
        return backend

    @property
    def held(self) -> HeldModel:
        return self.process.worker.loaded.held


@contextmanager
def patience() -> Iterator[None]:
    """Keep connections made inside open over pauses of this process, such as those between a worker here and its
    clients."""
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        yield


@asynccontextmanager
async def serve(
    checkpoint: Path, directory: Path, stored: StoredModels | None = None, *, warm_up_s: float = 600.0, **settings: Any
) -> AsyncIterator[Served]:
    address, objects_url = f"unix:{directory / 'w'}", f"file://{directory / 'objects'}"
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    own = {"model_name": "tiny", "objects_url": objects_url, **settings}
    process = wiring.wire(UnetWorkerSettings(rpc, channels, checkpoint, **own), stored)
    with patience():
        await process.server.start()
    with pytest.MonkeyPatch.context() as patch:
        for bound, value in {**PATIENT, "WARM_UP_S": warm_up_s}.items():
            patch.setattr(loader, bound, value)
        try:
            await process.warm()
            process.server.set_serving()
            with patience():
                connected = open_channel(address, channels)
            async with connected as channel:
                yield Served(process, channel, WorkerClient(channel), open_objects(objects_url), directory / "objects")
        finally:
            await process.close()
            await process.server.stop()


@contextmanager
def at_step(step: int, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` once, on the engine's thread, after an image of a worker in this process has taken the step. The
    engine waits for it. A client may see steps after the last one."""
    stepped, waiting = ProgressBridge.stepped, [act]

    def stepped_and_acted(bridge: ProgressBridge, taken: int, predicted_clean: Tensor | None) -> None:
        stepped(bridge, taken, predicted_clean)
        if taken >= step and waiting:
            waiting.pop()()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressBridge, "stepped", stepped_and_acted)
        yield


@pytest.fixture(scope="module", autouse=True)
def patient_connections() -> Iterator[None]:
    """The fixture may be a module's own."""
    with patience():
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    return write_checkpoint(directory, prediction_type="v_prediction", timestep_spacing="trailing")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a path short enough for a socket; pytest's own tmp_path may be too long."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield Path(folder)


@pytest.fixture
async def worker(checkpoint: Path, directory: Path) -> AsyncIterator[Served]:
    async with serve(checkpoint, directory) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lasting_worker(checkpoint: Path) -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(checkpoint, Path(folder)) as served:
            yield served


@pytest.fixture
def shared_worker(lasting_worker: Served) -> Served:
    """Return the module's worker with request ids that only this test uses."""
    return replace(lasting_worker, prefix=f"test-{next(_tests)}-")

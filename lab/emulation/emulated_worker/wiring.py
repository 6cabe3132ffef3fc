"""Build an emulated worker: the real worker with an emulated backend."""

from pathlib import Path

from lab.emulation.emulated_worker.backend import PROGRESS_INTERVAL_S, EmulatedBackend
from lab.emulation.emulated_worker.model import model_cost
from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.fleet_file import EmulatedDevices, EmulatedFleet, largest_batch, read_fleet
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import ModelCost
from services.unet_worker import metrics
from services.unet_worker.process import WorkerIdentity, WorkerProcess


class EmulatedModels:
    """The models that an emulated device can hold. See `process.WorkerModels`. There is nothing to load but
    recordings."""

    def __init__(
        self,
        settings: EmulatedWorkerSettings,
        fleet: EmulatedFleet,
        devices: EmulatedDevices,
        progress_interval_s: float,
    ) -> None:
        self._settings = settings
        self._progress_interval_s = progress_interval_s
        self._fleet = fleet
        self._devices = devices

    @property
    def names(self) -> tuple[str, ...]:
        return self._devices.models

    def costs(self) -> tuple[ModelCost, ...]:
        return tuple(model_cost(self._fleet.model(name), self._devices) for name in self.names)

    def stored(self) -> tuple[()]:
        return ()

    async def serve(self, identity: WorkerIdentity) -> EmulatedBackend:
        backend = EmulatedBackend(identity, self._fleet, self._devices, self._settings, self._progress_interval_s)
        metrics.QUEUE.set_function(lambda: backend.emulated.waiting_count)
        metrics.RUNNING.set_function(lambda: backend.emulated.running_count)
        return backend

    def close(self) -> None:
        """Close nothing: no thread runs next to the device."""


def wire(settings: EmulatedWorkerSettings, progress_interval_s: float = PROGRESS_INTERVAL_S) -> WorkerProcess:
    """Build the process, inside its event loop. Raises InvalidArgument or NotFound for the fleet's file."""
    file, mark, name = str(settings.fleet).rpartition("#")
    if not mark:
        raise InvalidArgument.of("fleet", f"must be FILE#NAME, the name of its [[devices]], got {file or name}")
    fleet = read_fleet(Path(file))
    devices = fleet.devices_named(name)
    credits = settings.credits or (0 if fleet.step_batching else _one_batch(fleet, devices))
    return WorkerProcess(settings, EmulatedModels(settings, fleet, devices, progress_interval_s), credits)


def _one_batch(fleet: EmulatedFleet, devices: EmulatedDevices) -> int:
    """Return the credits under request batching: a waiting request could not join the running batch, but could start on
    another worker."""
    return min(largest_batch(fleet.model(name), devices) for name in devices.models)

"""Construct a worker process."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pentimento.api.auth.v1 import auth_pb2 as auth_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.diffusion.device import choose_device
from pentimento.domain.components import StoredBytes
from pentimento.domain.fleet import ModelCost
from pentimento.domain.weights import ModelChange
from pentimento.files.file_sums import file_sums_in
from pentimento.policies.components import Utility
from pentimento.rpc.settings import BOUNDS, ServerBounds, room_for_streams
from pentimento.service.credits import LoopLagProbe
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.remote import Peers
from pentimento.stores.components.store import LocalComponents
from pentimento.stores.objects import open_objects
from services.unet_worker import metrics
from services.unet_worker.models.checkpoint_loading import Placement, load_checkpoint, short_models, weight_budget
from services.unet_worker.models.loader import CheckpointLoader, ModelSource
from services.unet_worker.models.model_card import checkpoints, model_costs
from services.unet_worker.models.model_switch import ModelSwitch
from services.unet_worker.models.stored_models import StoredModels
from services.unet_worker.process import WorkerIdentity, WorkerProcess
from services.unet_worker.remote.replicas import summed_answers
from services.unet_worker.settings import UnetWorkerSettings

# For a message of PredictHalf: the contract's max_request_bytes.
_STREAM = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].methods_by_name["PredictHalf"]
MAX_REQUEST_BYTES = _STREAM.GetOptions().Extensions[auth_pb.max_request_bytes]


def room_for_halves(settings: UnetWorkerSettings) -> ServerBounds:
    """Return bounds with room for one half per credit: each may be receiving a message of the largest size at the same
    time. If callers are authenticated, a worker's streams are not counted."""
    if settings.rpc.token_file is not None:
        return BOUNDS
    return room_for_streams(settings.credits or settings.max_batch, MAX_REQUEST_BYTES)


CHECKPOINTS = ModelSource(
    lambda settings: load_checkpoint(
        settings.model,
        settings.device,
        settings.dtype,
        settings.compile,
        settings.weights,
        settings.embeddings_dir,
        file_sums_in(settings.component_cache_dir),
        settings.tile_px,
        weight_budget(settings, choose_device(settings.device)),
        settings.text_encoders,
    ),
    summed_answers,
    short_models=short_models,
)


class TorchModels:
    """Hold a device's models by name, with the settings to load each. See `process.WorkerModels`."""

    def __init__(self, models: Mapping[str, UnetWorkerSettings], source: ModelSource = CHECKPOINTS) -> None:
        self._models = models
        self._source = source
        self._lag = LoopLagProbe(metrics.LOOP_LAG_SECONDS.observe)
        self._loader: CheckpointLoader | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def costs(self) -> tuple[ModelCost, ...]:
        return model_costs(self._models)

    async def serve(self, identity: WorkerIdentity) -> ModelSwitch:
        """Load, measure and compile off the event loop."""
        self._loader = loader = CheckpointLoader(self._models, identity, self._source)
        first = await loader.load(self.names[0])
        others = {name: self._models[name] for name in self.names[1:]}
        short = await asyncio.to_thread(self._source.short_models, others)
        backend = ModelSwitch(first, loader, identity.changed, short)
        self._lag.start()
        return backend

    def stored(self) -> tuple[StoredBytes, ...]:
        return tuple(
            StoredBytes(name, tier, size_bytes)
            for name, settings in self._models.items()
            for tier, size_bytes in sorted(self._source.tiers(settings).items(), key=lambda item: item[0].value)
        )

    def close(self) -> None:
        self._lag.close()
        if self._loader is not None:
            self._loader.close()


def fetching(source: ModelSource, stored: StoredModels) -> ModelSource:
    def change(name: str, settings: UnetWorkerSettings) -> ModelChange:
        return stored.load(lambda given: source.change(name, given), settings)

    def stage(settings: UnetWorkerSettings) -> Placement:
        place = stored.load(source.stage, settings)
        return lambda: stored.load(lambda given: place(), settings)

    return replace(source, load=partial(stored.load, source.load), change=change, stage=stage, tiers=stored.tiers)


def wire(settings: UnetWorkerSettings, stored: StoredModels | None = None) -> WorkerProcess:
    """Construct the process inside its event loop. `stored`: the models that are fetched when they are loaded.
    Raises InvalidArgument for two models with one name."""
    source = CHECKPOINTS if stored is None else fetching(CHECKPOINTS, stored)
    models, open_components = TorchModels(checkpoints(settings), source), partial(_local_components, settings)
    return WorkerProcess(settings, models, settings.credits, open_components, room_for_halves(settings))


def _local_components(settings: UnetWorkerSettings, peers: Peers) -> LocalComponents | None:
    if settings.component_cache_dir is None:
        return None
    disk_bytes, host_bytes = settings.component_disk_mib * 2**20, settings.component_host_mib * 2**20
    store = ComponentStore(settings.component_cache_dir, disk_bytes, host_bytes, Utility, peers)
    return LocalComponents(store, open_objects(settings.objects_url), disk_bytes)

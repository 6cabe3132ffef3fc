"""Read a worker's next model into host memory, if its memory allows, and place it on the device later."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pentimento.devices.choices import TextEncoderPlace
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.device import free_device_bytes, free_host_bytes
from pentimento.diffusion.families import DiffusionModel, stage_model, usual_dtype
from pentimento.diffusion.host_memory import HostBuffers, HostMemory
from pentimento.diffusion.model_registry import check_digest
from pentimento.diffusion.weight_memory import component_bytes, needed_bytes
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.weights import ModelChange
from pentimento.files.file_sums import file_sums_in
from pentimento.policies.buffer_pools import best_fit, pool_sizes
from pentimento.policies.model_switching import way_to_switch
from services.unet_worker.models.checkpoint_loading import (
    checked_place,
    completed,
    device_and_dtype,
    fitted,
    weight_budget,
)
from services.unet_worker.settings import UnetWorkerSettings

# Sizes of buffers for staged components (MLoRA, Eq. 8).
POOLS = 5
# Places a model that was read into host memory on its device; called once.
Placement = Callable[[], DiffusionModel]


def stage_checkpoint(settings: UnetWorkerSettings, buffers: HostBuffers | None) -> Placement:
    """Read a worker's model into host memory, of `buffers` if there are any. This and the placement raise as
    `load_checkpoint`."""
    quiet_loaders()
    device, dtype = device_and_dtype(settings.device, settings.dtype)
    budget = weight_budget(settings, device)
    place = checked_place(*fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget))
    sums, in_host = file_sums_in(settings.component_cache_dir), place is TextEncoderPlace.HOST
    staged = stage_model(settings.model, device, dtype, settings.weights, sums, in_host, buffers)
    if not settings.accept_other_digest:
        check_digest(settings.model, staged.digests.model, settings.expected_model_digest)
    return lambda: completed(staged.place(device), settings.compile, settings.embeddings_dir, settings.tile_px)


def staging_buffers(models: Iterable[UnetWorkerSettings]) -> HostBuffers | None:
    """Return pinned memory for the staged components of models; None on a CPU, where staged weights are the model's
    own and leave with it."""
    sizes = Counter[int]()
    for settings in models:
        device, dtype = device_and_dtype(settings.device, settings.dtype)
        if device.type != "cuda":
            return None
        with suppress(FailedPrecondition, OSError):
            checkpoint = _checkpoint(settings)
            sizes.update(component_bytes(checkpoint, dtype or usual_dtype(checkpoint, device)).values())
    return HostBuffers(pool_sizes(sizes, POOLS), best_fit, partial(HostMemory, is_read_by_device=True))


def model_change(name: str, settings: UnetWorkerSettings, reusable_bytes: int) -> ModelChange:
    """Return the way to change to a model, by the headers of its files and the memory that is free now, and that of
    buffers. Raises BadCheckpoint."""
    device, dtype = device_and_dtype(settings.device, settings.dtype)
    checkpoint, budget = _checkpoint(settings), weight_budget(settings, device)
    dtype = dtype or usual_dtype(checkpoint, device)
    place, _ = fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget)
    needed = needed_bytes(replace(checkpoint, encoders_in_host=place is TextEncoderPlace.HOST), dtype)
    staged = sum(component_bytes(checkpoint, dtype).values())
    host, free = free_host_bytes() + reusable_bytes, free_device_bytes(device, budget)
    if settings.component_host_mib:
        host = min(host, settings.component_host_mib * 2**20)
    return ModelChange(name, way_to_switch(staged, needed, host, free), needed, host, free)


def _checkpoint(settings: UnetWorkerSettings) -> Checkpoint:
    return replace(check_checkpoint(settings.model), storage=settings.weights)

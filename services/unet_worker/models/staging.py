"""Read a worker's next model into host memory, if its memory allows, and place it on the device later."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from pentimento.devices.choices import TextEncoderPlace
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.device import free_device_bytes, free_host_bytes
from pentimento.diffusion.families import DiffusionModel, stage_model, usual_dtype
from pentimento.diffusion.host_memory import host_buffers
from pentimento.diffusion.model_registry import check_digest
from pentimento.diffusion.weight_memory import component_bytes, needed_bytes
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.weights import ModelChange
from pentimento.files.file_sums import file_sums_in
from pentimento.policies.model_switching import way_to_switch
from services.unet_worker.models.checkpoint_loading import (
    checked_place,
    completed,
    device_and_dtype,
    fitted,
    weight_budget,
)
from services.unet_worker.settings import UnetWorkerSettings

T = TypeVar("T")

# Ordinary threads get about nine times its share of a contended processor.
_NICE = 10
# Places a model that was read into host memory on its device; called once.
Placement = Callable[[], DiffusionModel]


def stage_checkpoint(settings: UnetWorkerSettings) -> Placement:
    """Read a worker's model into host memory. This and the placement raise as `load_checkpoint`."""
    quiet_loaders()
    device, dtype = device_and_dtype(settings.device, settings.dtype)
    budget = weight_budget(settings, device)
    place = checked_place(*fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget))
    sums, in_host = file_sums_in(settings.component_cache_dir), place is TextEncoderPlace.HOST
    staged = stage_model(settings.model, device, dtype, settings.weights, sums, in_host)
    if not settings.accept_other_digest:
        check_digest(settings.model, staged.digests.model, settings.expected_model_digest)
    return lambda: completed(staged.place(device), settings.compile, settings.embeddings_dir, settings.tile_px)


def model_change(name: str, settings: UnetWorkerSettings) -> ModelChange:
    """Return the way to change to a model, by the headers of its files and the memory that is free now, idle buffers
    included. Raises BadCheckpoint."""
    device, dtype = device_and_dtype(settings.device, settings.dtype)
    checkpoint, budget = _checkpoint(settings), weight_budget(settings, device)
    dtype = dtype or usual_dtype(checkpoint, device)
    place, _ = fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget)
    needed = needed_bytes(replace(checkpoint, encoders_in_host=place is TextEncoderPlace.HOST), dtype)
    staged = sum(component_bytes(checkpoint, dtype).values())
    host = free_host_bytes() + host_buffers(is_read_by_device=device.type == "cuda").idle_bytes
    free = free_device_bytes(device, budget)
    if settings.component_host_mib:
        host = min(host, settings.component_host_mib * 2**20)
    return ModelChange(name, way_to_switch(staged, needed, host, free), needed, host, free)


def _checkpoint(settings: UnetWorkerSettings) -> Checkpoint:
    return replace(check_checkpoint(settings.model), storage=settings.weights)


async def at_low_priority(work: Callable[[], T]) -> T:
    """Return the result of `work`, on a new thread that does not keep the process from ending. Threads that it
    starts have its priority."""
    done: Future[T] = Future()
    threading.Thread(target=_run, args=(work, done), name="staging", daemon=True).start()
    return await asyncio.wrap_future(done)


def _run(work: Callable[[], T], done: "Future[T]") -> None:
    if not done.set_running_or_notify_cancel():
        return
    if sys.platform == "linux":  # elsewhere a priority is a process's
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    try:
        result = work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)

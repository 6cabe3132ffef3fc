"""Load a checkpoint onto the worker's device, or read it into host memory and place it on the device later."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice, TextEncoderPlace, WeightStorage
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import Checkpoint
from pentimento.diffusion.device import (
    choose_device,
    choose_dtype,
    free_device_bytes,
    free_host_bytes,
    memory_budget_bytes,
)
from pentimento.diffusion.engine import CompiledDenoiser, Denoiser, cuda_recorder, replaying
from pentimento.diffusion.families import DiffusionModel, load_model, stage_model, usual_dtype
from pentimento.diffusion.host_memory import host_buffers
from pentimento.diffusion.inversions import BadInversion, read_inversion
from pentimento.diffusion.model_registry import check_digest
from pentimento.diffusion.weight_memory import component_bytes, needed_bytes
from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.weights import ModelChange, ShortModel, way_to_switch
from pentimento.files.file_sums import FileSums, file_sums_in
from pentimento.files.safetensors_header import model_name
from services.unet_worker.settings import UnetWorkerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")


def load_checkpoint(
    path: Path,
    device_choice: DeviceChoice,
    dtype: DtypeChoice,
    mode: CompileMode = CompileMode.OFF,
    storage: WeightStorage = WeightStorage.AUTO,
    embeddings: Path | None = None,
    sums: FileSums | None = None,
    tile_px: int = 0,
    budget_bytes: int | None = None,
    text_encoders: TextEncoderPlace = TextEncoderPlace.AUTO,
) -> DiffusionModel:
    """Return the model on its device, with the textual inversions of the directory `embeddings`; files in `sums` are
    not hashed again, images with a side over `tile_px` are decoded in tiles, 0 for none. `text_encoders` are placed
    within `budget_bytes`. Without a `mode` there are no fused kernels. Raises FailedPrecondition for weights beyond the
    budget, before the model is loaded, and for a tile that is too small for it."""
    from pentimento.diffusion.weights import quiet_loaders  # loads the libraries, as a family's module

    quiet_loaders()
    device, chosen = device_and_dtype(device_choice, dtype)
    place = text_encoders
    if budget_bytes is not None:
        place = checked_place(*fitted(path, device, chosen, storage, text_encoders, budget_bytes))
    model = load_model(path, device, chosen, storage, sums, place is TextEncoderPlace.HOST)
    return completed(model, mode, embeddings, tile_px)


def completed(model: DiffusionModel, mode: CompileMode, embeddings: Path | None, tile_px: int) -> DiffusionModel:
    """Return the model with the worker's tiles, inversions and, unless the mode is OFF, kernels where they run. Raises
    FailedPrecondition for a tile that is too small."""
    try:
        if tile_px:
            model.tile_decoder(tile_px)
    except ValueError as error:
        raise FailedPrecondition("TILE_TOO_SMALL", f"tile_px={tile_px}: {error}") from None
    if embeddings is not None:
        add_inversions(model, embeddings)
    if mode is not CompileMode.OFF:
        from pentimento.diffusion.kernels import fuse, usual_kernels  # most networks run without them

        if (kernels := usual_kernels(model.device)) is not None:
            replaced = sum(len(fuse(network, kernels)) for network in (model.denoiser, model.picture_decoder))
            logger.info("%d layers replaced by fused ones", replaced)
    return model


def device_and_dtype(device: DeviceChoice, dtype: DtypeChoice) -> tuple[torch.device, torch.dtype | None]:
    found = choose_device(device)
    return found, None if dtype is DtypeChoice.AUTO else choose_dtype(dtype, found)


def checked_place(place: TextEncoderPlace, short: ShortModel | None) -> TextEncoderPlace:
    """Return the place of a result of `fitted`. Raises FailedPrecondition for a model that lacks memory."""
    if short is not None:
        raise FailedPrecondition("DEVICE_MEMORY_SHORT", f"{short}; {_ways_out(place)} or another device gives more")
    return place


def fitted(
    path: Path,
    device: torch.device,
    dtype: torch.dtype | None,
    storage: WeightStorage,
    text_encoders: TextEncoderPlace,
    budget_bytes: int,
) -> tuple[TextEncoderPlace, ShortModel | None]:
    """Return where a model's text encoders go, and what it lacks of memory, by the headers of its files; None if its
    weights fit. On a CPU, `auto` moves nothing: host memory is the device's. Raises BadCheckpoint."""
    checkpoint = replace(check_checkpoint(path), storage=storage)
    chosen = dtype or usual_dtype(checkpoint, device)
    needed, place = needed_bytes(checkpoint, chosen), text_encoders
    if place is TextEncoderPlace.AUTO:
        moves = needed > budget_bytes and device.type != "cpu"
        place = TextEncoderPlace.HOST if moves else TextEncoderPlace.DEVICE
    if place is TextEncoderPlace.HOST:
        needed = needed_bytes(replace(checkpoint, encoders_in_host=True), chosen)
    return place, ShortModel(model_name(path), needed, budget_bytes) if needed > budget_bytes else None


def _ways_out(place: TextEncoderPlace) -> str:
    return "memory_budget_mib" if place is TextEncoderPlace.HOST else "text_encoders=host, memory_budget_mib"


def weight_budget(settings: UnetWorkerSettings, device: torch.device) -> int:
    """Return the memory for weights and batches: workers that share a device have a part each."""
    sharers = settings.claims_per_device if device.type == "cuda" else 1
    return memory_budget_bytes(device, settings.memory_budget_mib, sharers)


def short_models(models: Mapping[str, UnetWorkerSettings]) -> tuple[ShortModel, ...]:
    """Return the models that the memory cannot hold. An invalid one is rejected when it is loaded."""
    found = []
    for name, settings in models.items():
        device, dtype = device_and_dtype(settings.device, settings.dtype)
        with suppress(FailedPrecondition):
            budget = weight_budget(settings, device)
            _, short = fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget)
            if short is not None:
                found.append(replace(short, model=name))
                logger.warning("a model is not available here: %s", found[-1])
    return tuple(found)


def add_inversions(model: DiffusionModel, directory: Path) -> tuple[str, ...]:
    """Add the inversions of a directory's safetensors files to the model's text encoders and return their words. A file
    that is unsound, of another model, or with a word that is taken is logged and left out."""
    words = []
    for path in sorted(directory.iterdir()):
        if path.suffix.lower() == ".safetensors" and path.is_file():
            try:
                inversion = read_inversion(path)
                model.add_inversion(inversion)
            except BadInversion as error:
                logger.warning("an embedding is rejected: %s", error.message)
            else:
                words.append(inversion.word)
    logger.info("%d embeddings for the model: %s", len(words), ", ".join(words)[:400])
    return tuple(words)


def compile_mode(choice: CompileMode, device: torch.device) -> CompileMode:
    if choice is not CompileMode.AUTO:
        return choice
    return CompileMode.CAPTURE if device.type == "cuda" else CompileMode.OFF


def denoiser_for(model: DiffusionModel, choice: CompileMode) -> Denoiser:
    """Return the configured forward pass. If CUDA graphs were requested and the device has none, it runs eagerly, and
    the log has the reason."""
    mode = compile_mode(choice, model.device)
    if mode is CompileMode.OFF:
        return Denoiser(model)
    if mode is not CompileMode.CAPTURE:
        return CompiledDenoiser(model, mode)
    try:
        recorder = cuda_recorder(model.device)
    except FailedPrecondition as error:
        logger.warning("the forward pass runs eagerly: %s", error.message, extra={"reason": error.reason})
        return Denoiser(model)
    model.record_texts(replaying(recorder))
    return CompiledDenoiser(model, mode, replaying(recorder), halves=True)


# Ordinary threads get about nine times its share of a contended processor.
_NICE = 10
# Places a model that was read into host memory on its device; called once.
Placement = Callable[[], DiffusionModel]


def stage_checkpoint(settings: UnetWorkerSettings) -> Placement:
    """Read a worker's model into host memory. This and the placement raise as `load_checkpoint`."""
    from pentimento.diffusion.weights import quiet_loaders  # loads the libraries, as a family's module

    quiet_loaders()
    device, dtype = device_and_dtype(settings.device, settings.dtype)
    budget = weight_budget(settings, device)
    place = checked_place(*fitted(settings.model, device, dtype, settings.weights, settings.text_encoders, budget))
    sums, in_host = file_sums_in(settings.component_cache_dir), place is TextEncoderPlace.HOST
    staged = stage_model(settings.model, device, dtype, settings.weights, sums, in_host)
    check_digest(settings.model, staged.digests.model, settings.expected_digest)
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

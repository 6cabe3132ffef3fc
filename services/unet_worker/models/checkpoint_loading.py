"""Load a checkpoint for a worker or for its profile."""

import logging
from pathlib import Path

import torch

from pentimento.devices.choices import CompileMode, DeviceChoice, DtypeChoice, KernelMode, WeightStorage
from pentimento.diffusion.device import choose_device, choose_dtype
from pentimento.diffusion.engine import (
    CompiledDenoiser,
    Denoiser,
    cuda_recorder,
    replaying,
)
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.inversions import BadInversion, read_inversion
from pentimento.diffusion.kernels import fuse, kernels_for
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.errors import FailedPrecondition
from pentimento.files.file_sums import FileSums

logger = logging.getLogger(__name__)


def load_checkpoint(
    path: Path,
    device_choice: DeviceChoice,
    dtype: DtypeChoice,
    kernel_mode: KernelMode = KernelMode.OFF,
    storage: WeightStorage = WeightStorage.AUTO,
    embeddings: Path | None = None,
    sums: FileSums | None = None,
    tile_px: int = 0,
) -> DiffusionModel:
    """Return the model on its device, with the textual inversions of the directory `embeddings`; files in `sums` are
    not hashed again, images with a side over `tile_px` are decoded in tiles, 0 for none. Raises FailedPrecondition for
    kernels that cannot run, before the model is loaded, and for a tile that is too small for it."""
    quiet_loaders()
    device = choose_device(device_choice)
    kernels = kernels_for(kernel_mode, device)
    chosen = None if dtype is DtypeChoice.AUTO else choose_dtype(dtype, device)
    model = load_model(path, device, chosen, storage, sums)
    try:
        if tile_px:
            model.tile_decoder(tile_px)
    except ValueError as error:
        raise FailedPrecondition("TILE_TOO_SMALL", f"tile_px={tile_px}: {error}") from None
    if embeddings is not None:
        add_inversions(model, embeddings)
    if kernels is not None:
        replaced = sum(len(fuse(network, kernels)) for network in (model.denoiser, model.picture_decoder))
        logger.info("%d layers replaced by fused ones", replaced)
    return model


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
    """Return the compile mode of the forward pass; the device decides for AUTO."""
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

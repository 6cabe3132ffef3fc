"""Load a checkpoint for a worker or for its profile."""

import logging
from pathlib import Path
from typing import Protocol

import torch

from pentimento.devices.choices import DeviceChoice, DtypeChoice
from pentimento.diffusion.device import choose_device, choose_dtype
from pentimento.diffusion.engine import (
    CompiledDenoiser,
    CompileMode,
    Denoiser,
    cuda_recorder,
    replaying,
)
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.kernels import KernelMode, fuse, kernels_for, runs_kernels
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.errors import FailedPrecondition
from services.unet_worker.settings import CompileChoice, KernelChoice

logger = logging.getLogger(__name__)


class CheckpointSettings(Protocol):
    """Describe the settings that decide how a checkpoint is loaded."""

    @property
    def model(self) -> Path: ...

    @property
    def device(self) -> DeviceChoice: ...

    @property
    def dtype(self) -> DtypeChoice: ...

    @property
    def kernels(self) -> KernelChoice: ...


def load_checkpoint(settings: CheckpointSettings) -> DiffusionModel:
    """Return the model on its device. Raises FailedPrecondition, before it is loaded, for kernels that cannot run."""
    quiet_loaders()
    device = choose_device(settings.device)
    kernels = kernels_for(kernel_mode(settings.kernels, device), device)
    model = load_model(settings.model, device, choose_dtype(settings.dtype, device))
    if kernels is not None:
        replaced = sum(len(fuse(network, kernels)) for network in (model.denoiser, model.picture_decoder))
        logger.info("%d layers replaced by fused ones", replaced)
    return model


def kernel_mode(choice: KernelChoice, device: torch.device) -> KernelMode:
    """Return the kernel mode; the device decides for AUTO."""
    if choice is not KernelChoice.AUTO:
        return KernelMode(choice.value)
    return KernelMode.FUSED if runs_kernels(device) else KernelMode.OFF


def compile_mode(choice: CompileChoice, device: torch.device) -> CompileMode:
    """Return the compile mode of the forward pass; the device decides for AUTO."""
    if choice is not CompileChoice.AUTO:
        return CompileMode(choice.value)
    return CompileMode.CAPTURE if device.type == "cuda" else CompileMode.OFF


def denoiser_for(model: DiffusionModel, choice: CompileChoice) -> Denoiser:
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

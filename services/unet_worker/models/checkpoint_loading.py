"""A checkpoint as a worker runs it, and as it is profiled."""

import logging

from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.kernels import KernelMode, fuse, kernels_for
from pentimento.diffusion.weights import quiet_loaders
from services.unet_worker.device.torch_device import choose_device, choose_dtype
from services.unet_worker.settings import ProfileSettings, UnetWorkerSettings

logger = logging.getLogger(__name__)


def load_checkpoint(settings: UnetWorkerSettings | ProfileSettings) -> DiffusionModel:
    """Return the model on its device. Raises FailedPrecondition, before it is loaded, for kernels that cannot run."""
    quiet_loaders()
    device = choose_device(settings.device)
    kernels = kernels_for(KernelMode(settings.kernels.value), device)
    model = load_model(settings.model, device, choose_dtype(settings.dtype, device))
    if kernels is not None:
        logger.info("%d layers replaced by fused ones", len(fuse(model.denoiser, kernels)))
    return model

"""Decide which libraries a worker needs, before they are imported. Free of torch."""

from pathlib import Path

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from services.unet_worker.models.other_models import other_models
from services.unet_worker.settings import CompileChoice, UnetWorkerSettings


def needs_networks_alone(settings: UnetWorkerSettings) -> bool:
    """Return whether every model is a directory of components that no compiler takes: a single file is read by
    diffusers' pipelines, and torch.compile reads diffusers' marks."""
    directories = (settings.model, *(other.path for other in other_models(settings)))
    return settings.compile is not CompileChoice.COMPILE and all(map(_has_components, directories))


def _has_components(directory: Path) -> bool:
    try:
        return check_checkpoint(directory).single_file is None
    except BadCheckpoint:
        return False  # reported when the checkpoint is checked

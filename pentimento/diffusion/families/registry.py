"""Load a model of its family from a checkpoint directory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import torch

from pentimento.devices.choices import DtypeChoice, WeightStorage
from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import Checkpoint, CheckpointDigests, digest_checkpoint
from pentimento.diffusion.device import choose_dtype
from pentimento.diffusion.families.model import DiffusionModel
from pentimento.diffusion.host_memory import host_buffers
from pentimento.files.file_sums import FileSums


def load_model(
    model: Path,
    device: torch.device,
    dtype: torch.dtype | None = None,
    storage: WeightStorage = WeightStorage.AUTO,
    sums: FileSums | None = None,
    encoders_in_host: bool = False,
) -> DiffusionModel:
    """Return the model of a directory or file after checking it; without a `dtype`, in float32 on a CPU, else in the
    family's half precision. Files in `sums` are verified while they are read, others are hashed once. With
    `encoders_in_host` text encoders stay in host memory. Raises BadCheckpoint with one line that names the fault, and
    CorruptComponent for a file that changed."""
    checkpoint = _checked(model, storage, sums, encoders_in_host)
    dtype = dtype or usual_dtype(checkpoint, device)
    if checkpoint.single_file is None:
        # Reading the weights hashes them.
        return _built(checkpoint, lambda: digest_checkpoint(checkpoint), device, dtype)
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as pool:
        # Parts of one file are read for each component: the file is hashed in parallel.
        return _built(checkpoint, pool.submit(digest_checkpoint, checkpoint).result, device, dtype)


@dataclass(frozen=True)
class StagedModel:
    """Hold a model's components in host memory, read and verified."""

    checkpoint: Checkpoint
    digests: CheckpointDigests
    dtype: torch.dtype

    def place(self, device: torch.device) -> DiffusionModel:
        """Return the model on the device. Its networks are those of this value: place it once. Raises as
        `load_model`."""
        return _built(self.checkpoint, lambda: self.digests, device, self.dtype)


@torch.inference_mode(mode=False)
def stage_model(
    model: Path,
    device: torch.device,
    dtype: torch.dtype | None = None,
    storage: WeightStorage = WeightStorage.AUTO,
    sums: FileSums | None = None,
    encoders_in_host: bool = False,
) -> StagedModel:
    """Return the model of `load_model` in host memory; what a GPU takes later is in pinned memory. Raises the same
    errors."""
    from pentimento.diffusion.weights import read_components  # loads the libraries, as a family's module

    checkpoint = _checked(model, storage, sums, encoders_in_host)
    dtype = dtype or usual_dtype(checkpoint, device)
    hold = host_buffers(is_read_by_device=True).hold if device.type == "cuda" else None
    parts = read_components(checkpoint, dtype, hold)
    return StagedModel(replace(checkpoint, in_memory=parts), digest_checkpoint(checkpoint), dtype)


def _checked(model: Path, storage: WeightStorage, sums: FileSums | None, encoders_in_host: bool) -> Checkpoint:
    checked = check_checkpoint(model)
    return replace(checked, storage=storage, sums=sums or FileSums(), encoders_in_host=encoders_in_host)


def usual_dtype(checkpoint: Checkpoint, device: torch.device) -> torch.dtype:
    """Return the precision of a model's weights by default: float32 on a CPU, else its family's half precision."""
    return choose_dtype(DtypeChoice.AUTO, device, getattr(torch, family_of(checkpoint).half))


@torch.inference_mode(mode=False)  # weights of a caller's inference mode could be changed in no other mode
def _built(
    checkpoint: Checkpoint, digests: Callable[[], CheckpointDigests], device: torch.device, dtype: torch.dtype
) -> DiffusionModel:
    module, _, adapter = family_of(checkpoint).adapter.rpartition(".")
    model: DiffusionModel = getattr(import_module(module), adapter)(checkpoint, digests, device, dtype)
    return model

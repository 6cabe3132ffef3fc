"""Load a model of its family from a checkpoint directory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from pentimento.devices.choices import DtypeChoice, WeightStorage
from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import Checkpoint, CheckpointDigests, digest_checkpoint
from pentimento.diffusion.device import choose_dtype
from pentimento.diffusion.families.model import DiffusionModel

FamilyLoader = Callable[[Checkpoint, Callable[[], CheckpointDigests], torch.device, torch.dtype], DiffusionModel]


@torch.inference_mode(mode=False)  # weights of a caller's inference mode could be changed in no other mode
def load_model(
    model: Path,
    device: torch.device,
    dtype: torch.dtype | None = None,
    storage: WeightStorage = WeightStorage.AUTO,
) -> DiffusionModel:
    """Return the model of a directory or file after checking it; without a `dtype`, in float32 on a CPU, else in the
    family's half precision. Raises BadCheckpoint with one line that names the fault."""
    checkpoint = replace(check_checkpoint(model), storage=storage)
    family = family_of(checkpoint)
    if dtype is None:
        dtype = choose_dtype(DtypeChoice.AUTO, device, getattr(torch, family.half))
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as pool:
        # Hashing gigabytes and importing libraries take seconds each, and can run in parallel on two cores.
        digests = pool.submit(digest_checkpoint, checkpoint)
        load: FamilyLoader = import_module(family.module).load
        return load(checkpoint, digests.result, device, dtype)

"""Load a model of its family from a checkpoint directory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from pentimento.diffusion.allow_list import check_checkpoint, family_of
from pentimento.diffusion.checkpoint import Checkpoint, CheckpointDigests, digest_checkpoint
from pentimento.diffusion.families.model import DiffusionModel

FamilyLoader = Callable[[Checkpoint, Callable[[], CheckpointDigests], torch.device, torch.dtype], DiffusionModel]


@torch.inference_mode(mode=False)  # weights of a caller's inference mode could be changed in no other mode
def load_model(directory: Path, device: torch.device, dtype: torch.dtype) -> DiffusionModel:
    """Return the model of a directory after checking it. Raises BadCheckpoint with one line that names the fault."""
    checkpoint = check_checkpoint(directory)
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as pool:
        # Hashing gigabytes and importing libraries take seconds each, and can run in parallel on two cores.
        digests = pool.submit(digest_checkpoint, checkpoint)
        load: FamilyLoader = import_module(family_of(checkpoint).module).load
        return load(checkpoint, digests.result, device, dtype)

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
from pentimento.files.file_sums import FileSums

FamilyLoader = Callable[[Checkpoint, Callable[[], CheckpointDigests], torch.device, torch.dtype], DiffusionModel]


@torch.inference_mode(mode=False)  # weights of a caller's inference mode could be changed in no other mode
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
    checked = check_checkpoint(model)
    checkpoint = replace(checked, storage=storage, sums=sums or FileSums(), encoders_in_host=encoders_in_host)
    family = family_of(checkpoint)
    if dtype is None:
        dtype = choose_dtype(DtypeChoice.AUTO, device, getattr(torch, family.half))
    load: FamilyLoader = import_module(family.module).load
    if checkpoint.single_file is None:
        # Reading the weights hashes them.
        return load(checkpoint, lambda: digest_checkpoint(checkpoint), device, dtype)
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as pool:
        # Parts of one file are read for each component: the file is hashed in parallel.
        return load(checkpoint, pool.submit(digest_checkpoint, checkpoint).result, device, dtype)

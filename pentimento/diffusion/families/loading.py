"""What the families' loaders have in common: settings of a configuration that must not be there, and schedulers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint, CheckpointDigests, read_json_object
from pentimento.diffusion.schedulers import SchedulerConfig, UnsupportedConfig, scheduler_configs
from pentimento.domain.generation import Scheduler

# Hashing a checkpoint takes seconds and happens beside its loading; called when the digests are needed.
DigestsLater = Callable[[], CheckpointDigests]


def refuse_keys(checkpoint: Checkpoint, component: str, keys: Iterable[str]) -> dict[str, Any]:
    """Return the component's configuration. BadCheckpoint when it sets a key that belongs to another kind of model."""
    path = checkpoint.component_directory(component) / "config.json"
    config = read_json_object(path)
    for key in keys:
        if config.get(key) is not None:
            raise BadCheckpoint(f"{path}: {key}={config[key]!r} is not supported")
    return config


def load_schedulers(
    checkpoint: Checkpoint, supported: tuple[Scheduler, ...], overrides: Mapping[str, Any] | None = None
) -> dict[Scheduler, SchedulerConfig]:
    """Return what the checkpoint can be sampled with, its own first; `overrides` are what the family's pipelines set.
    Raises BadCheckpoint."""
    path = checkpoint.component_directory("scheduler") / "scheduler_config.json"
    stored = read_json_object(path)
    # Where the two disagree the index wins, as in diffusers; a class that nobody knows is no scheduler's file.
    stated = stored.get("_class_name", checkpoint.components["scheduler"].name)
    try:
        scheduler_configs(stated, {}, supported)
        return scheduler_configs(checkpoint.components["scheduler"].name, {**stored, **(overrides or {})}, supported)
    except UnsupportedConfig as error:
        raise BadCheckpoint(f"{path}: {error}") from None


def default_size_px(sample_size: int | list[int] | tuple[int, int] | None, factor: int) -> tuple[int, int]:
    """Return width and height of the pictures that a denoiser was trained on."""
    if sample_size is None:
        raise BadCheckpoint("the denoiser's configuration has no sample_size")
    height, width = sample_size if isinstance(sample_size, list | tuple) else (sample_size, sample_size)
    return width * factor, height * factor

"""Describe the worker's models, free of torch: all that the settings name, and the held one, read from the checkpoint
and completed by settings and a registry.json next to it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pentimento.profiles as profiles
from pentimento.devices.choices import CompileMode
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.model_registry import check_digest, registry_entry, usual_settings
from pentimento.domain.adapters import ANY_DIGEST, split_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import HeldModel, ModelCost
from pentimento.files.safetensors_header import found_model, model_name
from services.unet_worker.settings import SkipMissing, UnetWorkerSettings, source_of

if TYPE_CHECKING:
    from pentimento.diffusion.families import LoadedModelInfo
    from pentimento.profiles import ModelProfile

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OtherModel:
    """Describe a checkpoint's directory or file; if `digest` is not empty, only weights with that digest are held."""

    path: Path
    digest: str = ""

    @property
    def name(self) -> str:
        return model_name(self.path)


def other_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    """Return the models that the settings name besides the first. If models may be missing, skip the missing ones and
    all repeats. Raises InvalidArgument for an invalid digest."""
    named = named_models(settings)
    if settings.skip_missing is SkipMissing.OFF:
        return named
    found = {one.path.resolve(): one for one in reversed(named) if one.path.exists()}
    found.pop(settings.model.resolve(), None)
    return tuple(reversed(found.values()))


def missing_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    return tuple(one for one in named_models(settings) if not one.path.exists() and one not in other_models(settings))


def named_models(settings: UnetWorkerSettings) -> tuple[OtherModel, ...]:
    """Return the models that the settings name besides the first, on disk or not, each of S3 once. Raises
    InvalidArgument for an invalid digest."""
    paths = (given for given in settings.other_models if source_of("other_models", given) is None)
    split = (split_digest("other_models", str(given)) for given in paths)
    named = [OtherModel(_place(settings.model, Path(where)), digest) for where, digest in split]
    known = {settings.model_name, model_name(settings.model), *(one.name for one in named)}
    return (*named, *(OtherModel(Path(name)) for name in settings.sources if name not in known))


def _place(first: Path, given: Path) -> Path:
    """Return the path of a model; a bare name may mean one next to the first model."""
    there = found_model(given)
    return there if there.exists() or given.name != str(given) else found_model(first.parent / given)


def needs_networks_alone(settings: UnetWorkerSettings) -> bool:
    """Return whether every model is a directory of components that no compiler takes: a single file is read by
    diffusers' pipelines, and torch.compile reads diffusers' marks."""
    directories = (settings.model, *(other.path for other in other_models(settings)))
    return settings.compile is not CompileMode.COMPILE and all(map(_has_components, directories))


def _has_components(directory: Path) -> bool:
    try:
        return check_checkpoint(directory).single_file is None
    except BadCheckpoint:
        return False  # reported when the checkpoint is checked


def usual_cost(model: Path, profile: "ModelProfile", steps: int, guidance: float) -> ModelCost:
    """Return the costs in a profile of `model` for images of the first profiled size, with those steps and guidance."""
    first, guided = profile.batches[0], usual_settings(model).is_guided(guidance)
    run_s = profiles.run_seconds(profile, first.width_px, first.height_px, guided=guided, steps=steps)
    size = profile.size(first.width_px, first.height_px)
    return ModelCost(
        profile.model,
        run_s,
        profile.idle_memory_bytes or 0,
        step_count=steps,
        fixed_s=size.prepare.mean_s if size is not None else 0.0,
        finish_s=size.decode.mean_s + size.encode.mean_s if size is not None else 0.0,
    )


def usual_of(model: Path, steps: int = 0, guidance: float = -1.0) -> tuple[int, float]:
    """Return steps and guidance of requests that name none: the given ones, else (0 steps, negative guidance) those of
    the registry next to the model, else those of its kind."""
    entry, kind = registry_entry(model), usual_settings(model)
    usual = float(entry.get("default_guidance_scale", kind.guidance_scale))
    return steps or int(entry.get("default_steps", kind.steps)), usual if guidance < 0 else guidance


SIZE_HEADROOM = 2
# Most steps that a request may ask for.
MAX_STEPS = 1000


def checkpoints(settings: UnetWorkerSettings) -> dict[str, UnetWorkerSettings]:
    """Return each checkpoint's settings by name; the first held model comes first. Raises InvalidArgument for two with
    one name, and for a missing one."""
    any_digest = ANY_DIGEST if settings.expected_digest == ANY_DIGEST else ""
    named = {settings.model_name or model_name(settings.model): settings}
    if missing := missing_models(settings):
        logger.warning("skipped, no such directory or file: %s", ", ".join(str(one.path) for one in missing))
    for other in other_models(settings):
        name = other.name
        if name in named:
            raise InvalidArgument.of("other_models", f"must have names of their own, got {name!r} twice")
        if not other.path.exists():
            raise InvalidArgument.of("other_models", f"must exist, there is no directory or file {other.path}")
        named[name] = replace(settings, model=other.path, model_name=name, expected_digest=other.digest or any_digest)
    return named


def held_model(
    info: "LoadedModelInfo", settings: UnetWorkerSettings, generation: int, usual: tuple[int, float] | None = None
) -> HeldModel:
    """Describe the held model; `usual` replaces the steps and guidance scale of `usual_of`. Raises FailedPrecondition
    if settings or registry expect another digest."""
    entry = registry_entry(settings.model)
    check_digest(settings.model, info.model_digest, settings.expected_digest)
    steps, guidance = usual or usual_of(settings.model)
    return HeldModel(
        model=settings.model_name or model_name(settings.model),
        model_digest=info.model_digest,
        worker_generation=generation,
        vae_digest=info.vae_digest,
        scheduler_digest=info.scheduler_digest,
        prediction_type=info.prediction_type,
        family=info.family,
        default_width_px=info.default_width_px,
        default_height_px=info.default_height_px,
        size_multiple_px=info.size_multiple_px,
        max_size_px=_max_size_px(info, settings),
        default_steps=steps,
        max_steps=min(MAX_STEPS, info.train_step_count),
        default_guidance_scale=guidance,
        schedulers=tuple(scheduler.value for scheduler in info.schedulers),
        licence=str(entry.get("licence", "")),
    )


def _max_size_px(info: "LoadedModelInfo", settings: UnetWorkerSettings) -> int:
    wanted = settings.max_size_px or SIZE_HEADROOM * max(info.default_width_px, info.default_height_px)
    return wanted if info.longest_side_px is None else min(wanted, info.longest_side_px)


def model_costs(models: Mapping[str, UnetWorkerSettings]) -> tuple[ModelCost, ...]:
    """Return the models' costs from files, or directories of files, for images of the first profiled size, with the
    usual steps and guidance. Raises InvalidArgument for a file that is not a profile."""
    paths = {path for settings in models.values() for path in settings.profiles}
    found = profiles.read_costs(sorted(paths)) if paths else ()
    return tuple(_cost(profile, models[profile.model]) for profile in found if profile.model in models)


def _cost(profile: "ModelProfile", settings: UnetWorkerSettings) -> ModelCost:
    cost = usual_cost(settings.model, profile, *usual_of(settings.model))
    return replace(cost, run_s=tuple((size, seconds) for size, seconds in cost.run_s if size <= settings.max_batch))

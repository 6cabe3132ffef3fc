"""Describe the worker's model: read from the checkpoint, completed by settings and a registry.json next to it."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from pentimento.diffusion.families import BatchKey, LoadedModelInfo
from pentimento.diffusion.model_registry import check_digest, registry_entry
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import HeldModel, ModelCost
from pentimento.files.model_files import model_name
from pentimento.profiles.costs import ModelProfile, read_costs
from services.unet_worker.models.other_models import missing_models, other_models
from services.unet_worker.models.usual_costs import usual_cost, usual_of
from services.unet_worker.settings import UnetWorkerSettings

logger = logging.getLogger(__name__)

SIZE_HEADROOM = 2
# Most steps that a request may ask for.
MAX_STEPS = 1000


def checkpoints(settings: UnetWorkerSettings) -> dict[str, UnetWorkerSettings]:
    """Return each checkpoint's settings by name; the first held model comes first. Raises InvalidArgument for two with
    one name, and for a missing one."""
    named = {settings.model_name or model_name(settings.model): settings}
    if missing := missing_models(settings):
        logger.warning("skipped, no such directory or file: %s", ", ".join(str(one.path) for one in missing))
    for other in other_models(settings):
        name = other.name
        if name in named:
            raise InvalidArgument.of("other_models", f"must have names of their own, got {name!r} twice")
        if not other.path.exists():
            raise InvalidArgument.of("other_models", f"must exist, there is no directory or file {other.path}")
        named[name] = replace(settings, model=other.path, model_name=name, expected_model_digest=other.digest)
    return named


def held_model(
    info: LoadedModelInfo, settings: UnetWorkerSettings, generation: int, usual: tuple[int, float] | None = None
) -> HeldModel:
    """Describe the held model; `usual` replaces the steps and guidance scale of `usual_of`. Raises FailedPrecondition
    if settings or registry expect another digest."""
    entry = registry_entry(settings.model)
    if not settings.accept_other_digest:
        check_digest(settings.model, info.model_digest, settings.expected_model_digest)
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


def _max_size_px(info: LoadedModelInfo, settings: UnetWorkerSettings) -> int:
    wanted = settings.max_size_px or SIZE_HEADROOM * max(info.default_width_px, info.default_height_px)
    return wanted if info.longest_side_px is None else min(wanted, info.longest_side_px)


def default_batch_key(info: LoadedModelInfo, held: HeldModel) -> BatchKey:
    return BatchKey(held.default_width_px, held.default_height_px, info.is_guided(held.default_guidance_scale))


def model_costs(models: Mapping[str, UnetWorkerSettings]) -> tuple[ModelCost, ...]:
    """Return the models' costs from files, or directories of files, for images of the first profiled size, with the
    usual steps and guidance. Raises InvalidArgument for a file that is not a profile."""
    paths = {path for settings in models.values() for path in settings.profiles}
    found = read_costs(sorted(paths))
    return tuple(_cost(profile, models[profile.model]) for profile in found if profile.model in models)


def _cost(profile: ModelProfile, settings: UnetWorkerSettings) -> ModelCost:
    cost = usual_cost(settings.model, profile, *usual_of(settings.model))
    return replace(cost, run_s=tuple((size, seconds) for size, seconds in cost.run_s if size <= settings.max_batch))

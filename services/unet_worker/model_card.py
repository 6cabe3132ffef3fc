"""What the worker says of its model: read off the checkpoint, completed by settings and a registry.json beside it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pentimento.diffusion.checkpoint import BadCheckpoint, read_json_object
from pentimento.diffusion.families import BatchKey, ModelInfo
from pentimento.domain.fleet import HeldModel, ModelCost
from pentimento.domain.profile import ModelProfile, read_profile, run_seconds
from services.unet_worker.settings import UnetWorkerSettings

DEFAULT_STEPS = 50
DEFAULT_GUIDANCE_SCALE = 7.5
SIZE_HEADROOM = 2


def held_model(info: ModelInfo, settings: UnetWorkerSettings, generation: int) -> HeldModel:
    entry = _registry_entry(settings.model)
    steps = settings.default_steps or int(entry.get("default_steps", DEFAULT_STEPS))
    guidance = settings.default_guidance_scale
    if guidance < 0:
        guidance = float(entry.get("default_guidance_scale", DEFAULT_GUIDANCE_SCALE))
    return HeldModel(
        model=settings.model_name or settings.model.resolve().name,
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
        max_steps=min(settings.max_steps, info.train_step_count),
        default_guidance_scale=guidance,
        schedulers=tuple(scheduler.value for scheduler in info.schedulers),
        licence=str(entry.get("licence", "")),
    )


def _max_size_px(info: ModelInfo, settings: UnetWorkerSettings) -> int:
    wanted = settings.max_size_px or SIZE_HEADROOM * max(info.default_width_px, info.default_height_px)
    return wanted if info.longest_side_px is None else min(wanted, info.longest_side_px)


def default_batch_key(held: HeldModel) -> BatchKey:
    """Of requests that name neither size nor guidance."""
    return BatchKey(held.default_width_px, held.default_height_px, held.default_guidance_scale > 1.0)


def model_costs(held: HeldModel, profiles: Iterable[str], batch_limit: int) -> tuple[ModelCost, ...]:
    """What files of `pentimento bench profile` say of the model, for pictures as it paints them by default. Raises
    InvalidArgument for a file that is none."""
    found = (profile for path in profiles if (profile := read_profile(Path(path))).model == held.model)
    return tuple(
        ModelCost(
            held.model,
            tuple((size, seconds) for size, seconds in _run_seconds(profile, held) if size <= batch_limit),
            profile.idle_memory_bytes or 0,
        )
        for profile in found
    )


def _run_seconds(profile: ModelProfile, held: HeldModel) -> tuple[tuple[int, float], ...]:
    guided = held.default_guidance_scale > 1.0
    size = (held.default_width_px, held.default_height_px)
    return run_seconds(profile, *size, guided=guided, steps=held.default_steps)


def _registry_entry(model: Path) -> Mapping[str, Any]:
    """The model's entry in the registry of the directory it lies in; empty without one."""
    path = model.resolve().parent / "registry.json"
    if not path.is_file():
        return {}
    models = read_json_object(path).get("models")
    if not isinstance(models, list) or not all(isinstance(entry, dict) for entry in models):
        raise BadCheckpoint(f"{path}: models must be a list of objects")
    return next((entry for entry in models if entry.get("path") == model.resolve().name), {})

"""What an emulated worker says of its model, and what its steps cost on the device that it stands for."""

import hashlib
from collections.abc import Iterable

from pentimento.devices.emulation import NOTHING, EmulatedDevices, EmulatedModel, largest_batch
from pentimento.devices.profile import Cost, ModelProfile, SizeProfile, profile_to_json
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import HeldModel, ModelCost
from pentimento.domain.generation import GenerationSpec
from services.unet_worker.emulation.engine import DeviceCosts

FAMILY = "emulated"
MAX_STEPS = 1000
SIZE_MULTIPLE_PX = 8

Key = tuple[int, int, bool]


def emulated_held_model(model: EmulatedModel, generation: int) -> HeldModel:
    """Its digests are those of no real model: nothing that it paints is ever taken for a real model's."""
    return HeldModel(
        model=model.name,
        model_digest=_digest("model", profile_to_json(model.profile)),
        worker_generation=generation,
        vae_digest=_digest("vae", model.name),
        scheduler_digest=_digest("scheduler", model.name),
        prediction_type="epsilon",
        family=FAMILY,
        default_width_px=model.width_px,
        default_height_px=model.height_px,
        size_multiple_px=SIZE_MULTIPLE_PX,
        max_size_px=max(max(size.width_px, size.height_px) for size in model.profile.batches),
        default_steps=model.steps,
        max_steps=MAX_STEPS,
        default_guidance_scale=model.guidance_scale,
        schedulers=("ddim",),
    )


def _digest(part: str, text: str) -> str:
    return f"sha256:{hashlib.sha256(f'emulated {part} {text}'.encode()).hexdigest()}"


def key_of(spec: GenerationSpec) -> Key:
    """Pictures with equal keys may share a step."""
    return (spec.width_px, spec.height_px, spec.guidance_scale > 1.0)


def default_key(model: EmulatedModel) -> Key:
    return (model.width_px, model.height_px, model.guided)


def device_costs(model: EmulatedModel, devices: EmulatedDevices, most: int | None = None) -> DeviceCosts:
    """For every size and guidance that was profiled, up to the batch that fits and `most`."""
    profile, slowness = model.profile, 1.0 / devices.speed
    limit = min(largest_batch(model, devices), most or devices.max_batch)
    keys = {(batch.width_px, batch.height_px, batch.guided) for batch in profile.batches}
    steps = {key: tuple(cost.times(slowness) for cost in _steps(profile, key, limit)) for key in keys}
    return DeviceCosts({key: costs for key, costs in steps.items() if costs}, _once(model).prepare.times(slowness))


def _steps(profile: ModelProfile, key: Key, limit: int) -> Iterable[Cost]:
    """By batch size from 1 on; below the smallest measured one as that one, up to the largest measured one."""
    measured = [batch.batch_size for batch in profile.batches if (batch.width_px, batch.height_px, batch.guided) == key]
    for batch_size in range(1, min(limit, max(measured)) + 1):
        wanted = max(batch_size, min(measured))
        cost = profile.step_cost(key[0], key[1], guided=key[2], batch_size=wanted)
        assert cost is not None
        yield cost


def model_cost(model: EmulatedModel, devices: EmulatedDevices) -> ModelCost:
    """As allocators read it: pictures of the model's own size, guidance and steps."""
    costs = device_costs(model, devices)
    run_s = (
        (size, size * costs.prepare.mean_s + model.steps * step.mean_s)
        for size, step in enumerate(costs.steps[default_key(model)], start=1)
    )
    return ModelCost(model.name, tuple(run_s), model.profile.idle_memory_bytes or 0, model.load.mean_s)


def finish_cost(model: EmulatedModel, devices: EmulatedDevices) -> tuple[Cost, Cost]:
    """Decoding and encoding a picture."""
    once, slowness = _once(model), 1.0 / devices.speed
    return once.decode.times(slowness), once.encode.times(slowness)


def _once(model: EmulatedModel) -> SizeProfile:
    """What is done once a picture; nothing where it was not measured."""
    found = model.profile.size(model.width_px, model.height_px)
    return found or SizeProfile(model.width_px, model.height_px, NOTHING, NOTHING, NOTHING)


def check_profiled(costs: DeviceCosts, spec: GenerationSpec) -> None:
    """Raises InvalidArgument for a picture whose cost was not measured: an emulation makes no figures up."""
    if key_of(spec) not in costs.steps:
        known = ", ".join(sorted({f"{width}x{height}" for width, height, _ in _keys(costs)}))
        message = f"must be a size that was profiled ({known}), guided or not as there, got {key_of(spec)}"
        raise InvalidArgument.of("spec.width_px", message)


def _keys(costs: DeviceCosts) -> Iterable[Key]:
    return (key for key in costs.steps if isinstance(key, tuple))

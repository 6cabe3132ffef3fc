"""Describe the model of an emulated worker, and its costs on the emulated device."""

import hashlib

from lab.emulation.adapters import AttemptAdapters
from lab.emulation.costs import ModelCosts, costs_of, once_per_image
from lab.emulation.fleet_file import EmulatedDevices, EmulatedFleet, EmulatedModel, largest_batch
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import HeldModel, ModelCost
from pentimento.domain.generation import GenerationSpec
from pentimento.profiles.costs import costs_to_json

FAMILY = "emulated"
MAX_STEPS = 1000
SIZE_MULTIPLE_PX = 8

Key = tuple[int, int, bool]


def emulated_held_model(model: EmulatedModel, generation: int) -> HeldModel:
    """Return the held model. Its digests match no real model, so that its images are never mixed up with real ones."""
    return HeldModel(
        model=model.name,
        model_digest=_digest("model", costs_to_json(model.profile)),
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


def emulated_loras(fleet: EmulatedFleet) -> tuple[Adapter, ...]:
    """Return the LoRAs that the fleet's file names. Their digests are those of no real one."""
    share = fleet.adapters.latest_start_fraction
    return tuple(
        Adapter(name, AdapterKind.LORA, _digest("lora", name), FAMILY, latest_start_fraction=share)
        for name in fleet.adapters.loras
    )


def adapters_of(spec: GenerationSpec) -> AttemptAdapters:
    """Return the adapters of an attempt. One LoRA with two weights is two sets, but loads once."""
    return AttemptAdapters(tuple(sorted((lora.name, lora.scale) for lora in spec.loras)), bool(spec.controlnets))


def _digest(part: str, text: str) -> str:
    return f"sha256:{hashlib.sha256(f'emulated {part} {text}'.encode()).hexdigest()}"


def key_of(spec: GenerationSpec) -> Key:
    """Return the key of a request; images with equal keys may share a step."""
    return (spec.width_px, spec.height_px, spec.guidance_scale > 1.0)


def costs_on(model: EmulatedModel, devices: EmulatedDevices) -> ModelCosts:
    """Return what the model costs there, for every size and guidance that was profiled."""
    return costs_of(model).slower(1.0 / devices.speed)


def model_cost(model: EmulatedModel, devices: EmulatedDevices) -> ModelCost:
    """Return the cost that allocators read, for images of the model's own size, guidance and steps."""
    costs = costs_on(model, devices)
    run_s = tuple((size, costs.run_s(size)) for size in range(1, largest_batch(model, devices) + 1))
    return ModelCost(
        model.name,
        run_s,
        model.profile.idle_memory_bytes or 0,
        model.load.mean_s,
        costs.step_count,
        costs.prepare.mean_s,
        costs.finish.mean_s,
    )


def decoding_share(model: EmulatedModel) -> float:
    """Return the device's share of the time after the last step: decoding, not encoding."""
    once = once_per_image(model)
    finish_s = once.decode.mean_s + once.encode.mean_s
    return once.decode.mean_s / finish_s if finish_s > 0.0 else 0.0


def check_profiled(costs: ModelCosts, spec: GenerationSpec) -> None:
    """Raise InvalidArgument for an image size or guidance without measured costs: an emulation invents no figures."""
    if key_of(spec) not in costs.sizes:
        known = ", ".join(sorted({f"{key[0]}x{key[1]}" for key in costs.sizes if isinstance(key, tuple)}))
        message = f"must be a size that was profiled ({known}), guided or not as there, got {key_of(spec)}"
        raise InvalidArgument.of("spec.width_px", message)

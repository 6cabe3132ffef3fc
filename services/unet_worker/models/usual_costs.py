"""Compute the usual steps, guidance scale and costs of a model's requests; free of torch."""

from pathlib import Path

from pentimento.diffusion.model_registry import registry_entry, usual_settings
from pentimento.domain.fleet import ModelCost
from pentimento.profiles.costs import ModelProfile, run_seconds


def usual_cost(model: Path, profile: ModelProfile, steps: int, guidance: float) -> ModelCost:
    """Return the costs in a profile of `model` for images of the first profiled size, with those steps and guidance."""
    first, guided = profile.batches[0], usual_settings(model).is_guided(guidance)
    run_s = run_seconds(profile, first.width_px, first.height_px, guided=guided, steps=steps)
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

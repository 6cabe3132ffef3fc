"""`python -m services.unet_worker.lora_bound --model DIR --loras DIR --prompts FILE`: how many steps may run before
each LoRA takes effect."""

import asyncio
from pathlib import Path

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.files.folders import check_folder
from pentimento.files.prompts import read_prompts
from pentimento.policies.lora_bounds import LoraBound, bounds_to_json, merged, read_lora_bounds
from pentimento.rpc import run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.settings import LoraBoundSettings


async def main(argv: list[str]) -> None:
    settings = load_settings(LoraBoundSettings, "bench_lora_bound", argv)
    check_folder("out", _path(settings))
    check_checkpoint(settings.model)
    prompts = read_prompts(settings.prompts)[: settings.first]
    await asyncio.to_thread(_measure, settings, prompts)


def _measure(settings: LoraBoundSettings, prompts: tuple[str, ...]) -> None:
    # Imported here: a wrong flag or a bad checkpoint is answered before torch is loaded.
    from services.unet_worker.models.lora_measuring import measure

    path = _path(settings)
    for bound in measure(settings, prompts):
        # Written after each: a LoRA that was measured stays so whatever becomes of the next one.
        path.write_text(bounds_to_json(merged(_there(path), [bound])), encoding="utf-8")
        print(described(bound), flush=True)
    print(path, flush=True)


def _path(settings: LoraBoundSettings) -> Path:
    return settings.out if settings.out is not None else settings.loras / LORA_BOUNDS_FILE


def _there(path: Path) -> tuple[LoraBound, ...]:
    return read_lora_bounds(path) if path.exists() else ()


def described(bound: LoraBound) -> str:
    """Return what was measured as text: the bound, and a line for each K."""
    rule = bound.rule.value if bound.rule is not None else "no rule"
    latest = round(bound.latest_start_fraction * bound.step_count)
    found = f"K = {latest} of {bound.step_count} by {rule}; {bound.alike_steps} by Katz's rule"
    lines = [
        f"{bound.lora} of {bound.model}: {found}",
        "  K/N    kept       cosine, lowest   strength, lowest  alike  allowed by",
    ]
    for one in bound.measured:
        lines.append(
            f"  {one.steps:2}/{bound.step_count}  {one.kept_count:4}/{one.picture_count:<4}"
            f"  {one.mean_cosine:.4f}  {one.lowest_cosine:.4f}   {one.mean_strength:.4f}  {one.lowest_strength:.4f}"
            f"    {one.mean_alike:.4f}  {', '.join(each.value for each in one.allowed) or 'none'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    configure_logging("bench_lora_bound", "")
    # Its file is a result that its user asked for.
    run_service(main, private=False)

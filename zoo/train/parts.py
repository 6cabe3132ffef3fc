"""List the parts of the zoo in the order of training: each one's module, plan and foundations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from pentimento.domain.errors import FailedPrecondition, NotFound
from zoo.files import file_digest
from zoo.train.loop import CHECKPOINT, Part, TrainingPlan, read_state

WORK = Path(".zoo-work")
PARTS = {
    "autoencoder": ("zoo.train.autoencoder", "AutoencoderPart", "PLAN"),
    "dual-encoder": ("zoo.train.dual_encoder", "DualEncoderPart", "PLAN"),
    "image-tower": ("zoo.train.image_tower", "ImageTowerPart", "PLAN"),
    "judge": ("zoo.train.judge", "AttributeReaderPart", "PLAN"),
    "heavy": ("zoo.train.denoiser", "HeavyPart", "HEAVY_PLAN"),
    "light": ("zoo.train.denoiser", "LightPart", "LIGHT_PLAN"),
    "flow": ("zoo.train.flow", "FlowPart", "PLAN"),
    "flow-distilled": ("zoo.train.flow_distilled", "FlowDistilledPart", "PLAN"),
    "flow-refined": ("zoo.train.flow_distilled", "FlowRefinedPart", "REFINING_PLAN"),
    "controlnet-edges": ("zoo.train.controlnet", "EdgesPart", "PLAN"),
    "controlnet-layout": ("zoo.train.controlnet", "LayoutPart", "PLAN"),
    "finder": ("zoo.train.finder", "FinderPart", "PLAN"),
    "lora-neon": ("zoo.train.lora", "NeonPart", "PLAN"),
    "lora-blueprint": ("zoo.train.lora", "BlueprintPart", "PLAN"),
    "lora-mosaic": ("zoo.train.lora", "MosaicPart", "PLAN"),
    "style-judge": ("zoo.train.style_judge", "StyleClassifierPart", "PLAN"),
    "discriminator": ("zoo.train.discriminator", "DiscriminatorPart", "PLAN"),
}

# each part's foundations, in the order of training: it uses their averaged weights unchanged
LATENTS = ("autoencoder", "dual-encoder")
NEEDS: dict[str, tuple[str, ...]] = {
    "image-tower": ("dual-encoder",),
    "heavy": LATENTS,
    "light": LATENTS,
    "flow": LATENTS,
    "flow-distilled": (*LATENTS, "flow", "heavy"),
    "flow-refined": (*LATENTS, "flow-distilled", "heavy"),
    **dict.fromkeys(("controlnet-edges", "controlnet-layout"), (*LATENTS, "heavy")),
    **dict.fromkeys(("lora-neon", "lora-blueprint", "lora-mosaic"), (*LATENTS, "heavy")),
    "discriminator": (*LATENTS, "heavy", "light"),
}


def part_and_plan(name: str) -> tuple[Callable[..., Part], TrainingPlan]:
    module_name, part_name, plan_name = PARTS[name]
    module = import_module(module_name)
    return getattr(module, part_name), getattr(module, plan_name)


def check_needs(name: str, work: Path) -> None:
    """Raise FailedPrecondition naming the parts to train first; warn on stderr about unfinished ones."""
    needed = NEEDS.get(name, ())
    missing = [part for part in needed if not (work / part / CHECKPOINT).exists()]
    if missing:
        commands = ", then ".join(f"`pentimento zoo train {part}`" for part in missing)
        raise FailedPrecondition(
            "PART_NOT_TRAINED",
            f"{name} stands on {missing[0]}, which has no checkpoint in {work}: run {commands} first",
        )
    for part in needed:
        for note in notes_on(part, work):
            print(f"note: {note}", file=sys.stderr)


def check_trained(work: Path, part: str, how: str) -> None:
    """Raise NotFound, naming the training command, if the work folder has no checkpoint of that part."""
    checkpoint = work / part / CHECKPOINT
    if not checkpoint.is_file():
        raise NotFound("FILE_MISSING", f"{checkpoint}: not there; train it: pentimento zoo train {part} {how}")


def foundations(name: str, work: Path) -> dict[str, str]:
    """Return digests of a part's foundations' checkpoints."""
    return {part: file_digest(work / part / CHECKPOINT) for part in NEEDS.get(name, ())}


def changed_foundations(name: str, work: Path) -> list[str]:
    """Return the foundations that were trained further, or again, since the part's last checkpoint."""
    recorded = read_state(work / name).get("stands_on")
    if not isinstance(recorded, dict):
        return []
    return [part for part, digest in foundations(name, work).items() if recorded.get(part, digest) != digest]


def notes_on(name: str, work: Path) -> Iterator[str]:
    """Yield warnings for users of a part's checkpoint: it is not finished, or a foundation has changed."""
    state = read_state(work / name)
    if state["step"] != state.get("steps"):
        yield f"{name} stands at step {state['step']} of {state.get('steps')}"
    if changed := changed_foundations(name, work):
        yield f"{name} was trained on another {', '.join(changed)}; remove {work / name} to train it again"

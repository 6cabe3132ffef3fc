"""Export the models' directories from their parts, all or none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

from pentimento.domain.errors import FailedPrecondition
from zoo.cards.card import write_cards
from zoo.drawing.tokenizer import load_tokenizer
from zoo.export.staging import staged, swap
from zoo.files import flush_tree
from zoo.registry import MODELS, ZooModel, write_registry
from zoo.train.loop import CHECKPOINT, TrainingPlan, TrainingRun
from zoo.train.parts import NEEDS, notes_on, part_and_plan

Export = Callable[[Path, Path], None]
# functions that write a directory from the work folder, by the kind of model; those for several models also get the
# part
EXPORTS = {
    ("pipeline", "sd"): ("zoo.export.pipeline", "export_pipeline", True),
    ("pipeline", "sd3"): ("zoo.export.flow", "export_flow", False),
    ("dual_encoder", "clip"): ("zoo.export.dual_encoder", "export_dual_encoder", False),
    ("controlnet", "sd"): ("zoo.export.controlnet", "export_controlnet", True),
    ("lora", "sd"): ("zoo.export.lora", "export_lora", True),
    ("discriminator", "efficientnet"): ("zoo.export.discriminator", "export_discriminator", False),
}
TRIAL = {"count": 24, "batch": 4}  # stand-ins' settings for untrained parts


def export_all(
    work: Path, weights: Path, only: Sequence[str] = (), *, untrained: bool = False, told: Callable[[str], None] = print
) -> list[str]:
    """Write the named models, or all that have checkpoints of their parts; with `untrained`, every one. Return the
    written names.

    Raises FailedPrecondition naming the part to train if a requested model, or with `untrained` any, lacks a
    checkpoint. On any failure the weights stay unchanged.
    """
    names = list(only or MODELS)
    if not untrained:
        missing = {name: missing_parts(MODELS[name], work) for name in names}
        _check(missing, work, asked=bool(only))
        for name in (name for name in names if missing[name]):
            told(f"{name}: left as it is, since {missing[name][0]} is not trained")
        names = [name for name in names if not missing[name]]
        for part in dict.fromkeys(part for name in names for part in parts_of(MODELS[name])):
            for note in notes_on(part, work):
                told(f"note: {note}")
    with stand_ins(work, names) if untrained else nullcontext(work) as parts, staged(weights) as stage:
        for name in names:
            exporter_of(MODELS[name], TRIAL["count"] if untrained else None)(parts, stage / name)
            told(f"{name}: {sum(file.stat().st_size for file in (stage / name).rglob('*.safetensors')) / 1e6:.2f} MB")
        write_cards(stage, work, results=None)  # without figures: they were measured on other weights
        flush_tree(stage)
        for name in names:
            swap(stage / name, weights / name)
    write_registry(weights)
    return names


def _check(missing: dict[str, list[str]], work: Path, *, asked: bool) -> None:
    lacking = [(name, parts) for name, parts in missing.items() if parts]
    if lacking and (asked or len(lacking) == len(missing)):
        name, parts = lacking[0]
        raise FailedPrecondition(
            "PART_NOT_TRAINED",
            f"{name} needs {parts[0]}, which has no checkpoint in {work}: run `pentimento zoo train {parts[0]}` first",
        )


def parts_of(model: ZooModel) -> list[str]:
    """Return every part that must be trained to export a model, in the order of training."""

    def down(part: str) -> Iterator[str]:
        for needed in NEEDS.get(part, ()):
            yield from down(needed)
        yield part

    return list(dict.fromkeys(down(model.part)))


def missing_parts(model: ZooModel, work: Path) -> list[str]:
    return [part for part in parts_of(model) if not (work / part / CHECKPOINT).exists()]


def exporter_of(model: ZooModel, count: int | None = None) -> Export:
    """Return the function that writes a model's directory; `count` is its parts' number of training drawings, if not
    the default."""
    module, function, several = EXPORTS[model.kind, model.family]
    export = getattr(import_module(module), function)
    if several:
        return lambda work, folder: export(work, model.part, folder)
    return partial(export, count=count) if model.kind == "discriminator" and count is not None else export


@contextmanager
def stand_ins(work: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield a work folder where every part of the models has a checkpoint, real or of a single step."""
    with tempfile.TemporaryDirectory(prefix="zoo-untrained-") as made:
        folder = Path(made)
        load_tokenizer(work / "tokenizer")
        (folder / "tokenizer").symlink_to((work / "tokenizer").resolve())
        for part in dict.fromkeys(part for name in names for part in parts_of(MODELS[name])):
            if (work / part / CHECKPOINT).exists():
                (folder / part).symlink_to((work / part).resolve())
            else:
                make_part, _ = part_and_plan(part)
                TrainingRun(make_part(folder, **TRIAL), TrainingPlan(steps=1, peak_rate=1e-3), folder / part).train()
        yield folder

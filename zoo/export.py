"""Write the trained parts as stock diffusers and transformers directories, with cards and a registry.

    pentimento zoo export                   # everything that is trained
    pentimento zoo export --only tiny-clip  # or some of it

Every tensor is stored as fp16 safetensors. What the models share is byte-identical, so that git stores it once. All
directories are written beside the weights and take the old ones' places when the last of them is whole.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from pentimento.domain.errors import FailedPrecondition
from zoo.cards import write_cards
from zoo.command import run
from zoo.files import FULL, cannot_write, flush_tree
from zoo.registry import MODELS, WEIGHTS, Model, write_registry
from zoo.tokenizer import load_tokenizer
from zoo.train import NEEDS, WORK, notes_on, part_and_plan
from zoo.training import CHECKPOINT, Plan, Run

Export = Callable[[Path, Path], None]
# Who writes a directory from the work folder, by the kind of model; the part goes to those that write several.
EXPORTS = {
    ("pipeline", "sd"): ("zoo.export_pipeline", "export_pipeline", True),
    ("pipeline", "sd3"): ("zoo.export_flow", "export_flow", False),
    ("dual_encoder", "clip"): ("zoo.export_dual_encoder", "export_dual_encoder", False),
    ("controlnet", "sd"): ("zoo.export_controlnet", "export_controlnet", True),
    ("lora", "sd"): ("zoo.export_lora", "export_lora", True),
    ("discriminator", "efficientnet"): ("zoo.export_discriminator", "export_discriminator", False),
}
TRIAL = {"count": 24, "batch": 4}  # of parts that stand in for those not trained yet


def export_all(
    work: Path, weights: Path, only: Sequence[str] = (), *, untrained: bool = False, told: Callable[[str], None] = print
) -> list[str]:
    """Write the models named, or all whose parts have checkpoints; with `untrained`, every one. The names written.

    FailedPrecondition naming the part to train where a model that was asked for, or every one, lacks a checkpoint.
    On any failure the weights stay as they were.
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
        write_cards(stage, work, results=None)  # figures are of what was measured, which these weights were not
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


def parts_of(model: Model) -> list[str]:
    """Every part that must be trained to export a model, in the order of training."""

    def down(part: str) -> Iterator[str]:
        for needed in NEEDS.get(part, ()):
            yield from down(needed)
        yield part

    return list(dict.fromkeys(down(model.part)))


def missing_parts(model: Model, work: Path) -> list[str]:
    return [part for part in parts_of(model) if not (work / part / CHECKPOINT).exists()]


def exporter_of(model: Model, count: int | None = None) -> Export:
    """What writes a model's directory; `count` is how many drawings its parts were trained on, if not the usual."""
    module, function, several = EXPORTS[model.kind, model.family]
    export = getattr(import_module(module), function)
    if several:
        return lambda work, folder: export(work, model.part, folder)
    return partial(export, count=count) if model.kind == "discriminator" and count is not None else export


@contextmanager
def stand_ins(work: Path, names: Sequence[str]) -> Iterator[Path]:
    """A work folder in which every part of these models has a checkpoint, real or of a single step."""
    with tempfile.TemporaryDirectory(prefix="zoo-untrained-") as made:
        folder = Path(made)
        load_tokenizer(work / "tokenizer")
        (folder / "tokenizer").symlink_to((work / "tokenizer").resolve())
        for part in dict.fromkeys(part for name in names for part in parts_of(MODELS[name])):
            if (work / part / CHECKPOINT).exists():
                (folder / part).symlink_to((work / part).resolve())
            else:
                make_part, _ = part_and_plan(part)
                Run(make_part(folder, **TRIAL), Plan(steps=1, peak_rate=1e-3), folder / part).train()
        yield folder


@contextmanager
def staged(weights: Path) -> Iterator[Path]:
    """A folder beside the directories, gone after the block; what an earlier export left half done is put right."""
    for model in MODELS:
        if not (weights / model).exists() and old_of(weights / model).exists():
            old_of(weights / model).rename(weights / model)
        shutil.rmtree(old_of(weights / model), ignore_errors=True)
    stage = weights / ".exporting"
    shutil.rmtree(stage, ignore_errors=True)
    try:
        stage.mkdir(parents=True)
        yield stage
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise cannot_write(Path(error.filename or weights), error) from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def swap(new: Path, place: Path) -> None:
    """Put a whole directory in the place of another."""
    if place.exists():
        place.rename(old_of(place))
    new.rename(place)
    shutil.rmtree(old_of(place), ignore_errors=True)


def old_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.old")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=[], metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs [%(default)s]")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="where the directories go [zoo/weights]")
    parser.add_argument("--untrained", action="store_true", help="stand in for parts that have no checkpoint yet")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    export_all(arguments.work, arguments.weights, arguments.only, untrained=arguments.untrained)


if __name__ == "__main__":
    run(main)

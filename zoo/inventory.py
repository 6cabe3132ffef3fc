"""List the parts of the zoo: each one's foundations, training progress, and export: `pentimento zoo list`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pentimento.domain.errors import PentimentoError
from zoo.command import run
from zoo.registry import MODELS, REGISTRY, WEIGHTS, read_registry
from zoo.train.loop import CHECKPOINT, read_state
from zoo.train.parts import NEEDS, PARTS, WORK

HEADINGS = ("PART", "TRAINED", "STANDS ON", "EXPORTED AS")
UNEXPORTED = {
    "autoencoder": "part of every pipeline",
    "dual-encoder": "part of tiny-clip and of every pipeline",
    "flow": "part of tiny-flow",
    "flow-distilled": "part of tiny-flow",
    "judge": "nothing: it judges pictures",
    "style-judge": "nothing: it judges pictures",
    "finder": "nothing: it judges pictures",
}


def rows(work: Path, weights: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield one row a part, in the order of training."""
    exported = read_registry(weights) if (weights / REGISTRY).is_file() else {}
    models = {model.part: model.name for model in MODELS.values()}
    for part in PARTS:
        name = models.get(part, "")
        there = "" if not name or name in exported else ", not yet"
        yield part, progress(work / part), ", ".join(NEEDS.get(part, ())) or "-", UNEXPORTED.get(part, name + there)


def progress(folder: Path) -> str:
    if not (folder / CHECKPOINT).exists():
        return "no"
    try:
        state = read_state(folder)
    except PentimentoError:
        return "damaged"
    done = state["step"] == state.get("steps")
    return f"{state['step']} steps" if done else f"{state['step']} of {state.get('steps')} steps"


def main() -> None:
    parser = argparse.ArgumentParser(prog="pentimento zoo list", description=__doc__)
    parser.add_argument("--work", type=Path, default=WORK, help="folder of checkpoints and logs [%(default)s]")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    table = [HEADINGS, *rows(arguments.work, arguments.weights)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    run(main)

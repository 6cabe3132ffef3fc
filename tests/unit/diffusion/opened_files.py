"""Load checkpoints one after the other and print a line of JSON for each with the files opened meanwhile, by their
names below the folder of the checkpoint's folder, links resolved: `python -m ... CHECKPOINT ...`.

"digested" are files of the checkpoint, "strange" all others; "refused" is the reason of a rejection.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.lean_imports import import_networks_alone

opened: set[Path] = set()


def heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | Path):
        opened.add(Path(arguments[0]).resolve())


def load(checkpoint: Path) -> dict[str, Any]:
    from pentimento.diffusion.families import load_model

    opened.clear()
    refused, allowed = "", set()
    try:
        load_model(checkpoint, torch.device("cpu"), torch.float32)
        found = set(opened)
        allowed = {path.resolve() for path in check_checkpoint(checkpoint).files.values()}
    except BadCheckpoint as error:
        found, refused = set(opened), error.message
    folder = checkpoint.parent.resolve()
    names = {path: str(path.relative_to(folder)) for path in found if path.is_relative_to(folder) and path.is_file()}
    return {
        "digested": sorted(names[path] for path in names.keys() & allowed),
        "strange": sorted(names[path] for path in names.keys() - allowed),
        "refused": refused,
    }


if __name__ == "__main__":
    import_networks_alone()  # as the worker does
    sys.addaudithook(heard)
    for checkpoint in sys.argv[1:]:
        print(json.dumps(load(Path(checkpoint))))

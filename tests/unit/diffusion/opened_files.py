"""Loads a checkpoint and prints every file under the given folder that was opened meanwhile, links resolved:
`python -m ... CHECKPOINT FOLDER`. A last line says how it was refused, if it was."""

import sys
from pathlib import Path
from typing import Any

import torch

from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import load_model

checkpoint, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
opened: set[Path] = set()


def heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | Path):
        path = Path(arguments[0]).resolve()
        if path.is_relative_to(folder) and path.is_file():
            opened.add(path)


sys.addaudithook(heard)
try:
    load_model(checkpoint, torch.device("cpu"), torch.float32)
    allowed = {path.resolve() for path in check_checkpoint(checkpoint).files}
    print("digested", *sorted(str(path.relative_to(folder)) for path in opened & allowed))
    print("strange", *sorted(str(path.relative_to(folder)) for path in opened - allowed))
except BadCheckpoint as error:
    print("opened", *sorted(str(path.relative_to(folder)) for path in opened))
    print("refused", error.message)

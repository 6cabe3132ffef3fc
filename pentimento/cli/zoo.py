"""`pentimento zoo …`: trains, measures and exports the tiny models; the work is done by the repository's `zoo` package.

It is no part of the installed package, and nothing of it is imported here: each subcommand becomes `python -m zoo.…`.
"""

import importlib.util
import os
import sys

import click

from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.child import SOURCE_ROOT, source_path

# The module that each subcommand runs, and a line on it.
SUBCOMMANDS = {
    "list": ("zoo.inventory", "the parts, what each stands on and how far it is"),
    "train": ("zoo.train", "train a part, or go on with it"),
    "export": ("zoo.export", "write what is trained as stock directories"),
    "discriminator": ("zoo.export.picture_folders", "fit a discriminator to two folders of pictures"),
    "prompt-head": ("zoo.export.prompt_head", "fit what reads prompts to a discriminator of the zoo's scenes"),
    "eval": ("zoo.evaluate", "measure the exported models on held-out scenes"),
    "sample": ("zoo.sample", "paint captions into a grid of pictures"),
    "cards": ("zoo.cards", "write the model cards with their samples and figures"),
}
NEEDED = ("torch", "diffusers", "transformers", "safetensors", "peft", "matplotlib")


@click.group()
def zoo() -> None:
    """Trains, measures and exports the tiny models. Of a checkout of the repository only."""


def add_subcommand(name: str) -> None:
    module, line = SUBCOMMANDS[name]

    @zoo.command(
        name,
        help=line,
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def delegate(arguments: tuple[str, ...]) -> None:
        become(module, arguments)


for _name in SUBCOMMANDS:
    add_subcommand(_name)


def become(module: str, arguments: tuple[str, ...]) -> None:
    """Runs the module in place of this process, so that its exit status and its signals are its own.

    FailedPrecondition where the repository or a library is not there.
    """
    if not (SOURCE_ROOT / "zoo" / "__init__.py").is_file():
        raise FailedPrecondition(
            "ZOO_NOT_HERE",
            f"the zoo is no part of the installed package (there is none in {SOURCE_ROOT}): "
            "take a checkout of the repository, and install it with `pip install --editable`",
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FailedPrecondition(
            "LIBRARY_MISSING", f"the zoo needs {', '.join(missing)}: `make setup` installs what it needs into .venv"
        )
    os.environ["PYTHONPATH"] = source_path()
    for library in ("TRANSFORMERS", "DIFFUSERS"):  # they tell at every import which of their parts are not there
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])

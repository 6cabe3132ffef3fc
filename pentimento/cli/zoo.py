"""`pentimento zoo …`: train, measure and export the tiny models with the repository's `zoo` package.

That package is not installed and not imported here: each subcommand becomes `python -m zoo.…`.
"""

import importlib.util
import os

import click

from pentimento.cli.forwarding import become
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.child import SOURCE_ROOT

# Module and help of each subcommand.
SUBCOMMANDS = {
    "list": ("zoo.inventory", "the parts, their requirements and progress"),
    "train": ("zoo.train", "train a part, or continue"),
    "export": ("zoo.export", "write trained parts as diffusers directories"),
    "discriminator": ("zoo.export.picture_folders", "fit a discriminator to two folders of images"),
    "prompt-head": ("zoo.export.prompt_head", "fit a discriminator that reads prompts, for the zoo's scenes"),
    "eval": ("zoo.evaluate", "measure the exported models on held-out scenes"),
    "sample": ("zoo.sample", "generate a grid of images from captions"),
    "cards": ("zoo.cards", "write the model cards with their samples and figures"),
}
NEEDED = ("torch", "diffusers", "transformers", "safetensors", "peft", "matplotlib")


@click.group()
def zoo() -> None:
    """Train, measure and export the tiny models, in a checkout of the repository."""


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
        start(module, arguments)


for _name in SUBCOMMANDS:
    add_subcommand(_name)


def start(module: str, arguments: tuple[str, ...]) -> None:
    """Replace this process by the module, which so has its own exit status and signals.

    FailedPrecondition if the repository or a library is missing.
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
    for library in ("TRANSFORMERS", "DIFFUSERS"):  # these libraries warn at every import about missing parts
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    become(module, arguments)

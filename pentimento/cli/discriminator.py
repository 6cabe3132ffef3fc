"""`pentimento discriminator`: train a cascade's discriminator on the images that a suite compared."""

from pathlib import Path

import click

from pentimento.cli.connection import state_dir_option
from pentimento.cli.programs import FORWARDED, ForwardingCommand, become
from pentimento.domain.errors import NotFound

MODULE = "services.discriminator.training"


@click.group()
def discriminator() -> None:
    """Train a cascade's discriminator on the light and heavy images that the suite compared."""


@discriminator.command(cls=ForwardingCommand, context_settings=FORWARDED)
@click.argument("cascade")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="directory to write; must not exist")
@click.option("--objects-url", default="", help="the suite's object store [files of the state directory]")
@state_dir_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def train(cascade: str, out: Path, objects_url: str, state_dir: Path, flags: tuple[str, ...]) -> None:
    """Train and calibrate a discriminator of CASCADE (LIGHT,HEAVY) that reads image and prompt, on the pairs of images
    that frontdoors kept; the suite may run meanwhile. Prints its AUROC for 'light is as good' next to
    baselines. `pentimento up --cascade CASCADE --discriminator OUT` serves it. `pentimento discriminator train
    LIGHT,HEAVY --out DIR --help` lists the FLAGS, such as --network narrow, --steps and --start."""
    objects = state_dir.resolve() / "objects"
    if not objects_url and not objects.is_dir():
        raise NotFound("NO_OBJECTS", f"{objects} does not exist: give --state-dir, or --objects-url of the suite")
    given = ("--cascade", cascade, "--out", str(out.resolve()), "--objects-url", objects_url or objects.as_uri())
    become(MODULE, (*given, *flags))

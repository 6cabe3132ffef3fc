"""`pentimento models`: models and cascades that are registered with the controller."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from pentimento.cli.allocation_samples import plain_cascade
from pentimento.cli.calls import ask_controller
from pentimento.cli.connection import PRESENT, controller_options
from pentimento.cli.options import say
from pentimento.cli.programs import RenamedOptions, described
from pentimento.clients.models import ModelRepositoryClient
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import MAX_HANDOVER_PROFILE_BYTES, CascadeVariant, ModelVariant, RegisteredModels
from pentimento.files.json_values import from_json, to_json
from pentimento.supervisor.models import find_model

T = TypeVar("T")
PROFILES = click.Path(exists=True, path_type=Path)
CALL_TIMEOUT_S = 10.0
_SHOWN_DIGEST = 19


@click.group()
def models() -> None:
    """Register models and cascades with the controller, list and remove them. Needs an administrator's token."""


@models.command(cls=RenamedOptions)
@click.argument("name")
@click.argument("model")
@click.option("--licence", default="", help="SPDX identifier or name [from the model's registry]")
@click.option("--profiles", multiple=True, type=PROFILES, help="files or directories with its costs (`profile cost`)")
@controller_options
def add(name: str, model: str, licence: str, profiles: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Register MODEL (a registry name, a diffusers directory or a single file, safetensors only) as NAME.

    Its files are validated as a worker does, and their digest is registered; the weights stay where they are.
    """
    if not name:
        raise InvalidArgument.of("name", "must not be empty")
    variant = describe(name, find_model(model).path, profiles)
    variant = replace(variant, licence=licence) if licence else variant
    call(options, lambda client: client.register_model(variant, CALL_TIMEOUT_S))
    say(to_json(variant), f"{name}: {variant.family}, {variant.size_bytes} bytes, {variant.digest}", as_json=as_json)


@models.command("add-cascade", cls=RenamedOptions)
@click.argument("file", type=PRESENT)
@click.option("--profiles", multiple=True, type=PRESENT, help="file of `profile handover`, one for each hand-over")
@controller_options
def add_cascade(file: Path, profiles: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Register the cascade in FILE, as JSON: `models`, light first, and `handovers`, one for each but the last, with
    `discriminator` (`light>heavy`), `discriminator_digest`, and f(t) as `thresholds` and `shares`.

    If a model may start from the earlier model's image, a hand-over profile of both, or `reuse_share` of the hand-over,
    gives the share of steps saved.
    """
    stated, texts = read_cascade(file), tuple(map(profile_text, profiles))
    cascade = call(options, lambda client: client.register_cascade(stated, CALL_TIMEOUT_S, handover_profiles=texts))
    say({"name": cascade.name, **to_json(cascade)}, cascade_words(cascade), as_json=as_json)


@models.command("list")
@controller_options
def list_registered(as_json: bool, **options: Any) -> None:
    """List registered models and cascades."""
    registered = call(options, lambda client: client.registered(CALL_TIMEOUT_S))
    if as_json:
        say(to_json(registered), "", as_json=True)
    else:
        Console().print(models_table(registered))
        for cascade in registered.cascades:
            click.echo(f"cascade {cascade_words(cascade)}")


@models.command()
@click.argument("name")
@controller_options
def remove(name: str, as_json: bool, **options: Any) -> None:
    """Remove the model NAME, or the cascade of that name (`light>heavy`, or as `list` prints it)."""
    name = name.replace(" → ", ">")
    if ">" in name:
        call(options, lambda client: client.remove_cascade(name, CALL_TIMEOUT_S))
    else:
        call(options, lambda client: client.remove_model(name, CALL_TIMEOUT_S))
    say({"removed": name}, f"{name} is removed", as_json=as_json)


def call(options: dict[str, Any], question: Callable[[ModelRepositoryClient], Awaitable[T]]) -> T:
    """Return the controller's answer, or raise its error."""
    return ask_controller(options, lambda channel: question(ModelRepositoryClient(channel)))


def describe(name: str, model: Path, profiles: tuple[Path, ...]) -> ModelVariant:
    """Describe a directory as a worker does. FailedPrecondition for an invalid one."""
    flags: list[str | Path] = ["--model", model, "--name", name]
    if profiles:
        flags += ["--profiles", ",".join(str(path.resolve()) for path in profiles)]
    return from_json(ModelVariant, json.loads(described("services.unet_worker.describe", flags, "BAD_CHECKPOINT")))


def read_cascade(file: Path) -> CascadeVariant:
    """Read a cascade from a file. InvalidArgument names a wrong field."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InvalidArgument.of("file", f"must be JSON, {file} is not") from None
    return from_json(CascadeVariant, document, "cascade")


def profile_text(file: Path) -> str:
    """Read a hand-over profile, which the controller validates. InvalidArgument for a file that is too large or not
    UTF-8."""
    with file.open("rb") as opened:
        data = opened.read(MAX_HANDOVER_PROFILE_BYTES + 1)
    if len(data) > MAX_HANDOVER_PROFILE_BYTES:
        limit = f"must name files of at most {MAX_HANDOVER_PROFILE_BYTES} bytes"
        raise InvalidArgument.of("profiles", f"{limit}, {file} is larger")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument.of("profiles", f"must name files of text, {file} is none") from None


def cascade_words(cascade: CascadeVariant) -> str:
    """Format a cascade: its name, its discriminators, and for each model that starts from the earlier model's image the
    share of steps that it may skip, with the source of the share."""
    words = (
        f"{plain_cascade(cascade.name)}: discriminators {', '.join(each.discriminator for each in cascade.handovers)}"
    )
    for model, handover in zip(cascade.models[1:], cascade.handovers, strict=True):
        if (of := handover.reuse_profile) is not None:
            source = f"profiled: keeps {of.alpha:g} by {of.rule}"
        else:
            source = "stated" if handover.reuse_share else ""
        words += f"; {model} spares {handover.reuse_share:g} of its steps ({source})" if source else ""
    return words


def models_table(registered: RegisteredModels) -> Table:
    """Return the table of models."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "family", "licence", "digest", "costs on"):
        table.add_column(heading, overflow="fold")
    table.add_column("MB", justify="right", no_wrap=True)
    for variant in registered.models:
        devices = ", ".join(on.device or "any device" for on in variant.costs) or "not known"
        size = f"{variant.size_bytes / 1e6:.1f}"
        table.add_row(variant.name, variant.family, variant.licence, variant.digest[:_SHOWN_DIGEST], devices, size)
    return table

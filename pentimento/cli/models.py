"""`pentimento models`: models and cascades that are registered with the controller."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from pentimento.cli.allocation_samples import plain_cascade
from pentimento.cli.calls import ask_controller, chunks_of
from pentimento.cli.connection import PRESENT, controller_options
from pentimento.cli.options import plain_table, say
from pentimento.cli.programs import described
from pentimento.clients.controller import ModelRepositoryClient
from pentimento.domain.adapters import split_digest
from pentimento.domain.clock import SystemClock
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.models import (
    MAX_HANDOVER_PROFILE_BYTES,
    OBJECTS_SOURCE,
    CascadeVariant,
    ModelVariant,
    RegisteredModels,
)
from pentimento.files.adapter_registry import sign_registry
from pentimento.files.ed25519_keys import key_id_of, read_private_key
from pentimento.files.json_values import from_json, to_json
from pentimento.files.signed_entries import signed_variant, with_signature
from pentimento.supervisor.models import find_model

Command = TypeVar("Command", bound=Callable[..., Any])
PROFILES = click.Path(exists=True, path_type=Path)
CALL_TIMEOUT_S = 10.0
_SHOWN_DIGEST = 19
S3 = "s3://"


def signing_key_option(*, required: bool) -> Callable[[Command], Command]:
    """Return the option of the key that signs a registration."""
    help_text = "ed25519 private key, PEM (`openssl genpkey -algorithm ed25519`), that signs the registration"
    return click.option("--signing-key", required=required, default=None, type=PRESENT, help=help_text)


def wall_ms() -> int:
    return int(SystemClock().wall() * 1000)


@click.group()
def models() -> None:
    """Register models and cascades with the controller, list, sign and remove them. Needs an administrator's token."""


@models.command
@click.argument("name")
@click.argument("model")
@click.option("--licence", default="", help="SPDX identifier or name [from the model's registry]")
@click.option("--profiles", multiple=True, type=PROFILES, help="files or directories with its costs (`profile cost`)")
@signing_key_option(required=False)
@click.option("--local", is_flag=True, help="upload nothing: workers need the files on their own disks")
@click.option(
    "--component-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="where the files of an address are fetched to [that of the suite that runs here]",
)
@controller_options
def add(
    name: str,
    model: str,
    licence: str,
    profiles: tuple[Path, ...],
    signing_key: Path | None,
    local: bool,
    component_dir: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Register MODEL as NAME: `up --model NAME` and workers then serve it anywhere.

    MODEL is a registry name or a diffusers directory (safetensors only), which is uploaded to the suite's object store,
    or s3://bucket/path, which workers read themselves. A single file is registered and stays where it is.
    """
    if not name:
        raise InvalidArgument.of("name", "must not be empty")
    where, digest = split_digest("model", model)
    path = None if where.startswith(S3) else find_model(model).path
    components = component_dir or options["state_dir"] / "components"
    variant = describe(name, where if path is None else path, profiles, components)
    if digest not in ("", variant.digest):
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", f"{where}: its digest is {variant.digest}, expected {digest}")
    variant = replace(variant, licence=licence) if licence else variant
    is_uploaded = path is not None and path.is_dir() and not local
    if is_uploaded:
        variant = replace(variant, source=OBJECTS_SOURCE)
    elif path is not None:
        variant = replace(variant.without_blocks, default_steps=0, default_guidance_scale=0.0)
    if signing_key is not None:
        variant = signed_variant(variant, read_private_key(signing_key, "signing_key"), wall_ms())

    async def register(client: ModelRepositoryClient) -> int:
        uploaded_bytes = await upload(client, variant, path) if path is not None and is_uploaded else 0
        await client.register_model(variant, CALL_TIMEOUT_S)
        return uploaded_bytes

    uploaded_bytes = ask_controller(options, ModelRepositoryClient, register)
    words = f"{name}: {variant.family}, {variant.size_bytes} bytes, {variant.digest}"
    say(
        to_json(variant.without_blocks),
        f"{words}, {uploaded_bytes} bytes uploaded" if is_uploaded else words,
        as_json=as_json,
    )


@models.command()
@click.argument("entry", metavar="NAME|REGISTRY.JSON")
@signing_key_option(required=True)
@controller_options
def sign(entry: str, signing_key: Path, as_json: bool, **options: Any) -> None:
    """Sign the registered model NAME, or every entry of a registry.json, in place of earlier signatures. Workers with
    `registry_public_keys` load signed entries only."""
    key, now_ms = read_private_key(signing_key, "signing_key"), wall_ms()
    key_id = key_id_of(key.public_key())
    if entry.endswith(".json"):
        names = sign_registry(Path(entry), lambda one: with_signature(one, key, now_ms))
    else:
        names = [entry]

        async def renew(client: ModelRepositoryClient) -> None:
            found = await client.model(entry, CALL_TIMEOUT_S)
            source = OBJECTS_SOURCE if found.source.startswith(OBJECTS_SOURCE) else found.source
            await client.register_model(signed_variant(replace(found, source=source), key, now_ms), CALL_TIMEOUT_S)

        ask_controller(options, ModelRepositoryClient, renew)
    say({"signed": names, "key_id": key_id}, f"signed by {key_id}: {', '.join(names)}", as_json=as_json)


async def upload(client: ModelRepositoryClient, variant: ModelVariant, directory: Path) -> int:
    """Upload the files of a model that the object store lacks, and return their bytes."""
    missing = await client.missing_files(variant.files, CALL_TIMEOUT_S)
    files = {file.sha256: file for file in variant.files if file.sha256 in missing}
    for file in files.values():
        await client.add_file(file, chunks_of(directory / file.path))
    return sum(file.size_bytes for file in files.values())


@models.command("add-cascade")
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
    cascade = ask_controller(
        options,
        ModelRepositoryClient,
        lambda client: client.register_cascade(stated, CALL_TIMEOUT_S, handover_profiles=texts),
    )
    say({"name": cascade.name, **to_json(cascade)}, cascade_words(cascade), as_json=as_json)


@models.command("list")
@controller_options
def list_registered(as_json: bool, **options: Any) -> None:
    """List registered models and cascades."""
    registered = ask_controller(options, ModelRepositoryClient, lambda client: client.registered(CALL_TIMEOUT_S))
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
        ask_controller(options, ModelRepositoryClient, lambda client: client.remove_cascade(name, CALL_TIMEOUT_S))
    else:
        ask_controller(options, ModelRepositoryClient, lambda client: client.remove_model(name, CALL_TIMEOUT_S))
    say({"removed": name}, f"{name} is removed", as_json=as_json)


def describe(name: str, model: Path | str, profiles: tuple[Path, ...], components: Path | None = None) -> ModelVariant:
    """Describe a directory, file or address as a worker does. FailedPrecondition for an invalid one."""
    flags: list[str | Path] = ["--model", str(model), "--name", name]
    if components is not None:
        flags += ["--component-cache-dir", components]
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
    table = plain_table("model", "family", "licence", "digest", "costs on")
    table.add_column("MB", justify="right", no_wrap=True)
    for variant in registered.models:
        devices = ", ".join(on.device or "any device" for on in variant.costs) or "not known"
        size = f"{variant.size_bytes / 1e6:.1f}"
        table.add_row(variant.name, variant.family, variant.licence, variant.digest[:_SHOWN_DIGEST], devices, size)
    return table

"""Turn the options of `pentimento up` into the suite that they describe."""

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from click.core import ParameterSource

from pentimento.cli.programs import described
from pentimento.cli.suite_running import with_free_port
from pentimento.files.discriminator_records import check_cascade, check_informative
from pentimento.plugins import SUITES, check_policy, load_plugin
from pentimento.rpc.settings import RpcServerSettings, check_http_address
from pentimento.settings.loading import COMMON, setting_of
from pentimento.supervisor.devices import read_devices, read_places
from pentimento.supervisor.models import (
    DEFAULT_MODEL,
    ModelDirectory,
    find_controlnets,
    find_discriminator,
    find_encoder,
    find_image_encoder,
    find_loras,
    find_models,
    find_stored_model,
    with_shipped,
)
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite_settings import ServedCascade, SuitePlugin, SuiteSettings

HTTP_PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart")
# Options that are settings of the suite under the same name.
UNCHANGED = (
    "copies",
    "device",
    "threads",
    "policy",
    "slo_s",
    "prompt_classifier",
    "image_classifier",
    "controlnet_copies",
)
# Options that are flags of services under the same name. Defaults are left to their settings of environment and file.
PASSED = {
    "controller": ("modm_mode", "profile_rule"),
    "discriminator": ("unsafe_labels",),
    "frontdoor": (
        *("profile_rule", "thinning", "feature_reuse", "handover", "controlnet_pipelining"),
        "c2pa_certificate_file",
    ),
    "unet_worker": ("weights", "text_encoders", "tile_px", "registry_public_keys"),
    "controlnet_svc": ("registry_public_keys",),
    "vectordb_gateway": (
        *("profile_rule", "eviction", "cache_bias", "scratch_share", "renoised_share", "match_predictor"),
    ),
}


def suite_settings(options: dict[str, Any], state: StateDirectory) -> SuiteSettings:
    """Return the suite that the options describe. Raises UsageError, SettingsError, NotFound and InvalidArgument."""
    find = partial(find_stored_model, registered=partial(registered_models, state.path))
    emulated = emulated_devices(options["emulate"], options["models"], options["profiles"])
    encoder, image_encoder = find_encoder(options["encoder"]).path, served_image_encoder(options, emulated)
    check_planning(options["policy"], options["modm_mode"])
    cascade = served_cascade(options, image_encoder or encoder, find)
    given, small = served_small(options["small"], options["policy"], emulated, find)
    if emulated is not None and cascade is not None:
        raise click.UsageError("--cascade and --emulate exclude each other: the fleet's file has its cascade")
    classifies = options["prompt_classifier"] or options["image_classifier"]
    if classifies and emulated is not None:
        raise click.UsageError("--emulate generates no images that a classifier could check")
    if options["unsafe_labels"] and not classifies:
        raise click.UsageError("--unsafe-labels needs --prompt-classifier or --image-classifier")
    models = find_models(with_planned(options["models"], cascade, given), find) if emulated is None else ()
    devices, places = gpu_places(options["devices"], options["places"], models)
    token_file = options["token_file"] or token_file_of_all(options["config_file"])
    return SuiteSettings(
        models=models,
        cascade=cascade,
        encoder=encoder,
        cells=(options["cells"],),
        image_encoder=image_encoder,
        public=with_free_port("--listen", options["listen"]),
        http=with_free_port("--http", served_http(options["http"]), check_http_address),
        admin=administered(options["admin_listen"], token_file),
        config_file=options["config_file"],
        token_file=token_file and token_file.resolve(),
        emulated=emulated,
        small=small,
        profiles=with_shipped(options["profiles"], encoder, image_encoder) if emulated is None else (),
        controlnets=find_controlnets(options["controlnets"]),
        devices=devices,
        places=places,
        flags=service_flags(options),
        **{name: options[name] for name in UNCHANGED},
    )


def registered_models(state: Path) -> Mapping[str, str]:
    """Return the digests of the models that are registered in a state directory and that workers can fetch, by name."""
    ledger = state / "controller.sqlite"
    if not ledger.is_file():
        return {}
    text = described("services.controller.registered", [f"sqlite:///{quote(str(ledger))}"], "BAD_LEDGER")
    found: dict[str, str] = json.loads(text)
    return found


def served_image_encoder(options: dict[str, Any], emulated: SuitePlugin | None) -> Path | None:
    """Return the encoder of images; None where `--encoder` has both. Raises UsageError, NotFound, and InvalidArgument
    for an encoder of texts only."""
    if options["image_encoder"] is None:
        return None
    if emulated is not None:
        raise click.UsageError("--image-encoder and --emulate exclude each other: emulated images have one encoder")
    return find_image_encoder(options["image_encoder"]).path


def with_planned(models: tuple[str, ...], cascade: ServedCascade | None, small: tuple[str, ...]) -> tuple[str, ...]:
    """Return the given models with those of the cascade and of --small. Without a cascade the first one is the
    default."""
    if cascade is not None:
        models = tuple(dict.fromkeys((*models, *reversed(cascade.given))))
    if small:
        models = tuple(dict.fromkeys((*(models or (DEFAULT_MODEL,)), *small)))
    return models


def check_planning(policy: str, modm_mode: str | None) -> None:
    """Raise SettingsError for an unknown policy, UsageError for a mode of another one."""
    if policy:
        check_policy(policy, "--policy")
    if modm_mode and policy != "modm":
        raise click.UsageError(f"--modm-mode is of --policy modm, got {policy or 'no policy'}")


def gpu_places(
    devices: str, places: tuple[str, ...], models: tuple[ModelDirectory, ...]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the GPUs of the suite, and of single services. UsageError if they contradict other options,
    InvalidArgument for an unknown GPU or service."""
    if not devices and not places:
        return (), {}
    if not models:
        raise click.UsageError("--devices and --place are for models; the devices of --emulate are in its file")
    if devices and click.get_current_context().get_parameter_source("device") is not ParameterSource.DEFAULT:
        raise click.UsageError("--devices and --device exclude each other: --place SERVICE=cpu keeps one on the CPU")
    workers = ("unet_worker", *(f"unet_worker/{model.name}" for model in models))
    spread = read_devices("devices", devices, os.environ) if devices else ()
    return spread, read_places(places, ("controlnet_svc", "discriminator", "embedder", *workers), os.environ)


def token_file_of_all(config_file: Path | None) -> Path | None:
    """Return the token file that the settings name for every service: the suite must use it too, or its processes would
    require tokens of each other that none has. Raises SettingsError."""
    found: Path | None = setting_of(RpcServerSettings, "token_file", COMMON, config_file, os.environ)
    return found


def served_http(listen: str) -> str:
    """Return the address of HTTP; "" if its packages are not installed and the option was not given."""
    if not listen or all(importlib.util.find_spec(package) for package in HTTP_PACKAGES):
        return listen
    if click.get_current_context().get_parameter_source("http") is not ParameterSource.DEFAULT:
        raise click.UsageError("--http needs further packages: `pip install 'pentimento[edge]'`")
    return ""


def administered(listen: str, token_file: Path | None) -> str:
    """Return the address of the tenants' administration, "" for none. UsageError if it would be open to everyone."""
    if listen and token_file is None:
        raise click.UsageError("--admin-listen needs --token-file: without one every caller is an administrator")
    return with_free_port("--admin-listen", listen)


def served_cascade(
    options: dict[str, Any], encoder: Path, find: Callable[[str], ModelDirectory]
) -> ServedCascade | None:
    """Return the cascade of `--cascade`, None without it; registered discriminators that read prompts must read those
    of `encoder`. Raises UsageError, NotFound, and FailedPrecondition for a discriminator without information."""
    if not options["cascade"]:
        return None
    given = tuple(name.strip() for name in options["cascade"].split(","))
    names = tuple(find(one).name for one in given if one)
    if len(names) < 2 or not all(given) or len(set(names)) < len(names):
        limit = "must be two models or more, LIGHT,…,HEAVY, each once"
        raise click.UsageError(f"--cascade {limit}, got {options['cascade']!r}")
    pairs = tuple(pairwise(names))
    directories = options["discriminators"] or ("",) * len(pairs)
    if len(directories) != len(pairs):
        limit = f"must be given {len(pairs)} times, once for each model but the last"
        raise click.UsageError(f"--discriminator {limit}, got {len(directories)}")
    found = tuple(find_discriminator(one, pair, encoder) for one, pair in zip(directories, pairs, strict=True))
    for pair, directory in zip(pairs, found, strict=True):
        check_cascade(directory, ">".join(pair))
        check_informative(directory, ">".join(pair))
    if len(names) > 2 and options["policy"]:
        raise click.UsageError("--policy plans cascades of two models; --slo-s plans longer ones, once registered")
    return ServedCascade(names, found, options["confidence_threshold"], given)


def served_small(
    models: str, policy: str, emulated: SuitePlugin | None, find: Callable[[str], ModelDirectory]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models of `--small` as they were given, and their names; of emulated devices the names alone. Raises
    UsageError, and NotFound for an unknown one."""
    given = tuple(name.strip() for name in models.split(",")) if models else ()
    if given and not policy:
        raise click.UsageError("--small needs --policy modm, joint or resident-mixture, which plan with small models")
    known = emulated.models if emulated is not None else None
    if known is not None and (strangers := [name for name in given if name not in known]):
        raise click.UsageError(f"--small must be some of the fleet's {', '.join(known)}, got {strangers[0]!r}")
    names = given if known is not None else tuple(find(one).name for one in given if one)
    if not all(given) or len(set(names)) < len(names):
        raise click.UsageError(f"--small must be models separated by commas, each once, got {models!r}")
    return (() if known is not None else given), names


def emulated_devices(path: Path | None, models: tuple[str, ...], profiles: tuple[Path, ...]) -> SuitePlugin | None:
    if path is None:
        return None
    if models or profiles:
        given = "--model" if models else "--profiles"
        raise click.UsageError(f"{given} and --emulate exclude each other: the fleet's file has its models")
    read: Callable[[Path], SuitePlugin] = load_plugin(SUITES, "emulate", "pentimento up --emulate")
    return read(path)


def service_flags(options: dict[str, Any]) -> dict[str, dict[str, object]]:
    """Return the flags of services for the options that were given."""
    found = {
        service: {name.replace("_", "-"): options[name] for name in names if options[name] is not None}
        for service, names in PASSED.items()
    }
    found["unet_worker"]["adapters-dir"] = find_loras(options["adapters"])
    gateway = found["vectordb_gateway"]
    if options["policy"] == "modm":
        gateway.setdefault("profile-rule", "mean")
    if options["emulate"] is None:
        gateway["no-earned-reuse"] = not options["earned_reuse"]
    return found

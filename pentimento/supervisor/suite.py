"""List the processes of a local suite and their arguments. The services themselves are never imported."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.settings import RpcServerSettings, is_local
from pentimento.settings import setting
from pentimento.settings.loading import setting_of
from pentimento.supervisor.cells import cell_lists, cell_names
from pentimento.supervisor.devices import CPU, most_sharers
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.state import MAX_SOCKET_NAME, StateDirectory
from pentimento.supervisor.suite_settings import ProcessSpec, ReplicaGroup, Suite, SuiteSettings

IMAGE_EMBEDDER = "image-embedder"
# Its workers are counted in all, not by model.
ANY_MODEL_POLICY = "many-models"
EDGE_STAGE, FRONTDOOR_STAGE, WORKER_STAGE, CACHE_STAGE, CONTROLLER_STAGE = range(5)


@dataclass(frozen=True)
class PlannedModels:
    """Hold the controller's settings of environment and file; they take precedence over the suite's models."""

    heavy: str = setting("", help="see the controller")
    light: str = setting("", help="see the controller")
    small: tuple[str, ...] = setting((), help="see the controller")


def longest_drain_s(suite: Suite, config_file: Path | None, environ: Mapping[str, str]) -> float:
    """Return the longest drain timeout of all processes, in seconds, by their settings. Raises SettingsError."""
    modules = {process.module for process in suite.processes}
    sections = [module.rpartition(".")[2] for module in sorted(modules)]
    return max(float(setting_of(RpcServerSettings, "drain_timeout_s", one, config_file, environ)) for one in sections)


def plan_suite(settings: SuiteSettings, state: StateDirectory) -> Suite:
    """Return the suite: every service once, and a worker for each copy of each model. Sockets are unix sockets, and
    stores are in the state directory."""
    called, calling = called_groups(settings, state), worker_groups(settings, state)
    processes = [spec for group in called for spec in group.specs]
    if settings.cached:
        processes.append(gateway(settings, state))
    processes.append(controller(settings, state))
    processes += [spec for group in calling for spec in group.specs]
    if settings.emulated is not None:
        processes += settings.emulated.discriminators(settings, state)
    elif settings.cascade is not None or settings.safety_checks:
        processes.append(discriminator(settings, state))
    processes += [frontdoor(settings, state, number) for number in range(max(settings.cells))]
    if settings.http:
        processes.append(edge(settings, state))
    return Suite(tuple(processes), (*called, *calling))


def called_groups(settings: SuiteSettings, state: StateDirectory) -> tuple[ReplicaGroup, ...]:
    """Return the groups of embedders and ControlNet services, if any. Workers call the latter, and stop before them."""
    groups = []
    if settings.cached:
        groups.append(ReplicaGroup("embedder", partial(embedder, settings, state, settings.encoder, Space.TEXT), 1))
    if settings.image_encoder is not None:
        spec = partial(embedder, settings, state, settings.image_encoder, Space.IMAGE)
        groups.append(ReplicaGroup("image_embedder", spec, 1))
    if settings.controlnets is not None and settings.emulated is None:
        spec = partial(controlnet_replica, settings, state)
        groups.append(ReplicaGroup("controlnet_svc", spec, settings.controlnet_copies))
    return tuple(groups)


def worker_groups(settings: SuiteSettings, state: StateDirectory) -> tuple[ReplicaGroup, ...]:
    """Return the workers of each model, or of each type of emulated device; one group if a policy has every worker
    hold any of the models."""
    made: list[tuple[str, Callable[[int], ProcessSpec], int]] = [
        (model.name, partial(worker, settings, state, model), settings.copies) for model in settings.models
    ]
    if settings.emulated is not None:
        made = list(settings.emulated.workers(settings, state))
    elif settings.policy == ANY_MODEL_POLICY:
        made = [("any", partial(worker_of_any, settings, state), settings.copies)]
    only = len(made) == 1
    return tuple(
        ReplicaGroup("unet_worker" if only else f"unet_worker/{name}", spec, count) for name, spec, count in made
    )


def unix_address(state: StateDirectory, name: str) -> str:
    """Return the address of a process's socket. Long names are shortened by a hash."""
    if len(name) > MAX_SOCKET_NAME:
        name = f"{name[:8]}-{hashlib.sha256(name.encode()).hexdigest()[: MAX_SOCKET_NAME - 9]}"
    return f"unix:{state.sockets / name}.sock"


def process_of(
    settings: SuiteSettings,
    state: StateDirectory,
    name: str,
    module: str,
    stage: int,
    flags: Mapping[str, object],
    *more: str,
    on: str = "",
) -> ProcessSpec:
    """Return a process with its `flags` (see `arguments`), those of the settings for its service, the flags that every
    process has, and `more`. `on`: the name that `--place` has for it; empty for a process without a device."""
    devices = settings.devices_of(on) if on else None
    own = settings.flags.get(module.rpartition(".")[2], {})
    given = {"listen": unix_address(state, name), **flags, **own, "instance-id": name}
    given |= {"config": settings.config_file, "token-file": settings.token_file}
    if module != "services.controller":
        given["controller-address"] = unix_address(state, "controller")
        # The token for its calls of others.
        given["service-token-file"] = settings.service_token_file
    if on:
        given["device"] = settings.device if devices is None else "cuda" if devices else CPU
    return ProcessSpec(name, module, (*arguments(given), *more), unix_address(state, name), stage, devices or ())


def arguments(flags: Mapping[str, object]) -> tuple[str, ...]:
    """Return flags with their values as arguments: none for None, False and empty values, a switch for True, a list
    for a tuple. Raises InvalidArgument for a list that services could not read."""
    found: list[str] = []
    for name, value in flags.items():
        if value is True:
            found.append(f"--{name}")
        elif not (value is None or value is False or value in ("", ())):
            found += [f"--{name}", listed(name, value) if isinstance(value, tuple) else str(value)]
    return tuple(found)


def listed(option: str, values: Iterable[object]) -> str:
    """Return the values as a list that services can read. Raises InvalidArgument for a value that they would split or
    strip."""
    texts = [str(value) for value in values]
    for text in texts:
        if "," in text or text != text.strip():
            limit = "must be a path without a comma and without spaces at its ends"
            raise InvalidArgument.of(option, f"{limit}, got {text}")
    return ",".join(texts)


def stores(settings: SuiteSettings, state: StateDirectory) -> Path:
    """Return the folder of the stores. Emulated images have a separate one: real models would start from them."""
    return state.path / "emulated" if settings.emulated is not None else state.path


def store_url(settings: SuiteSettings, state: StateDirectory, scheme: str, name: str) -> str:
    return f"{scheme}{quote(str(stores(settings, state) / name))}"


def objects_url(settings: SuiteSettings, state: StateDirectory) -> str:
    return store_url(settings, state, "file://", "objects")


def embedder(settings: SuiteSettings, state: StateDirectory, encoder: Path, space: Space, number: int) -> ProcessSpec:
    """Return one embedder of a space; the first has the name in the settings of other processes."""
    module = settings.emulated.embedder_module if settings.emulated is not None else "services.embedder"
    flags: dict[str, object] = {"encoder": encoder, "threads": settings.threads}
    first, on = "embedder", "" if settings.emulated is not None else "embedder"
    if space is Space.IMAGE:
        first, flags["space"] = IMAGE_EMBEDDER, space.value
    name = f"{first}-{number}" if number else first
    return process_of(settings, state, name, module, CACHE_STAGE, flags, on=on)


def gateway(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    """Return the gateway. Emulated models cannot be measured: their fleet's file has the tables of reuse."""
    flags: dict[str, object] = {
        "index-url": store_url(settings, state, "edge://", "index"),
        "objects-url": objects_url(settings, state),
        "ledger-url": store_url(settings, state, "sqlite:///", "gateway.sqlite"),
        "grant-key-file": settings.grant_key_file,
        "follow-plan": bool(settings.policy),
    }
    more = settings.emulated.gateway_arguments() if settings.emulated is not None else ()
    if settings.emulated is None:
        flags["profiles"] = settings.profiles
    return process_of(settings, state, "gateway", "services.vectordb_gateway", CACHE_STAGE, flags, *more)


def controlnet_replica(settings: SuiteSettings, state: StateDirectory, number: int) -> ProcessSpec:
    """Return one ControlNet service."""
    name, module, module_name = f"controlnet-{number}", "services.controlnet_svc", "controlnet_svc"
    flags = {
        "controlnets": settings.controlnets,
        "threads": settings.threads,
        "component-cache-dir": state.path / "components",
        "claims-per-device": most_sharers([settings.devices_of(module_name)] * settings.controlnet_copies),
    }
    return process_of(settings, state, name, module, CACHE_STAGE, flags, on=module_name)


def controller(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    flags: dict[str, object] = {
        "ledger-url": store_url(settings, state, "sqlite:///", "controller.sqlite"),
        "objects-url": objects_url(settings, state),
        "allocator": settings.policy,
        "slo-s": settings.slo_s,
    }
    more: tuple[str, ...] = ()
    if settings.emulated is not None:
        more = settings.emulated.controller_arguments(settings.config_file, settings.small)
    if settings.cascade is not None and settings.policy:
        light, heavy = settings.cascade.models
        flags |= {"light": light, "heavy": heavy, "small": settings.small}
    elif settings.cascade is not None and settings.slo_s is not None:
        # It is planned once it is registered.
        flags["cascade"] = settings.cascade.name
    elif settings.policy and settings.emulated is None:
        flags |= planned_models(settings.models, settings.small, settings.config_file)
    return process_of(settings, state, "controller", "services.controller", CONTROLLER_STAGE, flags, *more)


def planned_models(
    models: Sequence[ModelDirectory], small: tuple[str, ...], config_file: Path | None
) -> dict[str, object]:
    """Return the controller's flags for models without a cascade: the first is the heavy one, and the models of `small`
    refine hits, best first. If `small` is empty the other models do."""

    def given(name: str) -> Any:
        return setting_of(PlannedModels, name, "controller", config_file, os.environ)

    heavy = given("heavy") or models[0].name
    others = () if given("light") or given("small") else tuple(one.name for one in models if one.name != heavy)
    return {"heavy": heavy, "small": small or others}


def worker_of_any(settings: SuiteSettings, state: StateDirectory, number: int) -> ProcessSpec:
    """Return a worker that begins with one of the models, in turn."""
    return worker(settings, state, settings.models[number % len(settings.models)], number)


def worker(settings: SuiteSettings, state: StateDirectory, model: ModelDirectory, number: int) -> ProcessSpec:
    others = [
        other.source or (f"{other.path}@{other.digest}" if other.digest else str(other.path))
        for other in settings.models
        if other != model
    ]
    is_planned = bool(settings.policy) or (settings.cascade is not None and settings.slo_s is not None)
    flags = {
        "model": model.source or model.path,
        "model-name": model.name,
        "objects-url": objects_url(settings, state),
        "threads": settings.threads,
        "expected-digest": model.digest,
        "other-models": listed("model", others) if is_planned else "",
        "profiles": settings.profiles,
        "component-cache-dir": state.path / "components",
        "claims-per-device": most_sharers(worker_devices(settings)),
        "grant-key-file": settings.grant_key_file,
    }
    name, on = f"{model.name}-{number}", f"unet_worker/{model.name}"
    return process_of(settings, state, name, "services.unet_worker", WORKER_STAGE, flags, on=on)


def worker_devices(settings: SuiteSettings) -> list[tuple[str, ...] | None]:
    """Return the GPUs that each worker may use, in start order."""
    copies, models = settings.copies, settings.models
    any_model = settings.policy == ANY_MODEL_POLICY
    held = (
        [models[number % len(models)] for number in range(copies)]
        if any_model
        else [model for model in models for _ in range(copies)]
    )
    return [settings.devices_of(f"unet_worker/{model.name}") for model in held]


def discriminator(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    scored = settings.cascade.scored() if settings.cascade is not None else ()
    classifiers = (listed(f"{name}-classifier", [f"{name}={at}"]) for name, at in settings.classifiers.items())
    flags = {
        "threads": settings.threads,
        "cascades": listed("discriminator", (f"{pair}={directory}" for pair, directory in scored)),
        "classifiers": ",".join(classifiers),
    }
    return process_of(
        settings, state, "discriminator", "services.discriminator", WORKER_STAGE, flags, on="discriminator"
    )


def cell_flags(settings: SuiteSettings, state: StateDirectory) -> dict[str, object]:
    """Return the flags that tell frontdoors and edge of the cells; none in a suite with one frontdoor."""
    if settings.cells == (1,):
        return {}
    names = cell_names(max(settings.cells))
    return {
        "cells": tuple(f"{name}={unix_address(state, name)}" for name in names),
        "cell-lists": cell_lists(settings.cells),
    }


def cell_objects_url(settings: SuiteSettings, state: StateDirectory, number: int) -> str:
    """Return the object store of a cell's images. The first one has that of a suite without cells."""
    return store_url(settings, state, "file://", f"cells/{number}/objects") if number else objects_url(settings, state)


def frontdoor(settings: SuiteSettings, state: StateDirectory, number: int = 0) -> ProcessSpec:
    """Return the frontdoor of a cell. The first one has the public addresses and the ledger of tenants."""
    name, of_cells = cell_names(number + 1)[number], cell_flags(settings, state)
    address, first_ledger = unix_address(state, name), store_url(settings, state, "sqlite:///", "frontdoor.sqlite")
    ledger = store_url(settings, state, "sqlite:///", f"cells/{number}/frontdoor.sqlite") if number else first_ledger
    flags: dict[str, object] = {
        "listen": f"{address},{settings.public}" if settings.public and not number else address,
        "ledger-url": ledger,
        "objects-url": cell_objects_url(settings, state, number),
        # Each cell has its own erasures and receipts.
        "admin-listen": unix_address(state, f"{name}-admin") if number and settings.admin else settings.admin,
        "receipt-key-file": settings.receipt_key_file,
        "signing-key-file": settings.signing_key_file,
        **of_cells,
    }
    if of_cells:
        flags |= {"frontdoor-id": name, "tenants-url": first_ledger}
    more: tuple[str, ...] = ()
    if settings.emulated is not None:
        more = settings.emulated.frontdoor_arguments(stores(settings, state))
    else:
        flags |= {"profiles": settings.profiles, "cascade": (settings.models[0].name,)}
        if settings.cascade is not None:
            flags |= {
                "cascade": settings.cascade.models,
                "confidence-threshold": settings.cascade.confidence_threshold,
            }
    if settings.cached:
        names = ("embedder", IMAGE_EMBEDDER) if settings.image_encoder is not None else ("embedder",)
        flags["embedder-address"] = tuple(unix_address(state, name) for name in names)
        flags["gateway-address"] = unix_address(state, "gateway")
    if settings.safety_checks:
        flags["discriminator-addresses"] = unix_address(state, "discriminator")
        flags["safety-checks"] = settings.safety_checks
    return process_of(settings, state, name, "services.frontdoor", FRONTDOOR_STAGE, flags, *more)


def edge(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    """Return the HTTP edge. Callers use their own rights; its own token only reads the history of the charts."""
    flags: dict[str, object] = {
        "http-listen": settings.http,
        "frontdoor-address": unix_address(state, "frontdoor"),
        "gateway-address": unix_address(state, "gateway") if settings.cached else "",
        # There is no load balancer in front of a local address.
        "drain-delay-s": "0" if is_local(settings.http) else "",
        "signing-key-file": settings.signing_key_file,
        "files-url": tuple(cell_objects_url(settings, state, number) for number in range(max(settings.cells)))
        if settings.signing_key_file
        else (),
        **cell_flags(settings, state),
    }
    return process_of(settings, state, "edge", "services.edge", EDGE_STAGE, flags)

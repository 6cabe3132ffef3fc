"""List the processes of a local suite and their arguments. The services themselves are never imported."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.settings import RpcServerSettings, is_local
from pentimento.settings import setting
from pentimento.settings.loading import setting_of
from pentimento.supervisor.devices import CPU
from pentimento.supervisor.models import ModelDirectory
from pentimento.supervisor.state import MAX_SOCKET_NAME, StateDirectory
from pentimento.supervisor.suite_settings import ProcessSpec, ReplicaGroup, ServedCascade, Suite, SuiteSettings


@dataclass(frozen=True)
class PlannedModels:
    """Hold the controller's settings of environment and file; they take precedence over the suite's models."""

    heavy: str = setting("", help="see the controller")
    light: str = setting("", help="see the controller")
    small: tuple[str, ...] = setting((), help="see the controller")


def planned_models(models: Sequence[ModelDirectory], small: Sequence[str], config_file: Path | None) -> tuple[str, ...]:
    """Return the controller's flags: the first model is the heavy one, and the models of `small` refine hits, best
    first. If `small` is empty the other models do."""

    def given(name: str) -> Any:
        return setting_of(PlannedModels, name, "controller", config_file, os.environ)

    heavy = given("heavy") or models[0].name
    others = [] if given("light") or given("small") else [model.name for model in models if model.name != heavy]
    refining = small or others
    return ("--heavy", heavy, *(("--small", ",".join(refining)) if refining else ()))


EDGE_STAGE, FRONTDOOR_STAGE, WORKER_STAGE, CACHE_STAGE, CONTROLLER_STAGE = range(5)


def longest_drain_s(suite: Suite, config_file: Path | None, environ: Mapping[str, str]) -> float:
    """Return the longest drain timeout of all processes, in seconds, by their settings. Raises SettingsError."""
    modules = {process.module for process in suite.processes}
    sections = [module.rpartition(".")[2] for module in sorted(modules)]
    return max(float(setting_of(RpcServerSettings, "drain_timeout_s", one, config_file, environ)) for one in sections)


def plan_suite(settings: SuiteSettings, state: StateDirectory) -> Suite:
    """Return the suite: every service once, and a worker for each copy of each model. Sockets are unix sockets, and
    stores are in the state directory."""
    called, calling = called_groups(settings, state), worker_groups(settings, state)
    cache = (gateway(settings, state),) if settings.cached else ()
    if settings.emulated is not None:
        discriminators = settings.emulated.discriminators(settings, state)
    else:
        discriminators = (discriminator(settings, state, settings.cascade),) if settings.cascade is not None else ()
    processes = (
        *(spec for group in called for spec in group.specs),
        *cache,
        controller(settings, state),
        *(spec for group in calling for spec in group.specs),
        *discriminators,
        frontdoor(settings, state),
        *((edge(settings, state),) if settings.http else ()),
    )
    return Suite(processes, (*called, *calling))


def called_groups(settings: SuiteSettings, state: StateDirectory) -> tuple[ReplicaGroup, ...]:
    """Return the groups of embedders and ControlNet services, if any. Workers call the latter, and stop before them."""
    groups = []
    if settings.cached:
        groups.append(ReplicaGroup("embedder", partial(embedder, settings, state), 1))
    if settings.controlnets is not None and settings.emulated is None:
        spec = partial(controlnet_replica, settings, state)
        groups.append(ReplicaGroup("controlnet_svc", spec, settings.controlnet_copies))
    return tuple(groups)


def worker_groups(settings: SuiteSettings, state: StateDirectory) -> tuple[ReplicaGroup, ...]:
    """Return the workers of each model, or of each type of emulated device."""
    made: list[tuple[str, Callable[[int], ProcessSpec], int]] = [
        (model.name, partial(worker, settings, state, model), settings.copies) for model in settings.models
    ]
    if settings.emulated is not None:
        made = list(settings.emulated.workers(settings, state))
    only = len(made) == 1
    return tuple(
        ReplicaGroup("unet_worker" if only else f"unet_worker/{name}", spec, count) for name, spec, count in made
    )


def unix_address(state: StateDirectory, name: str) -> str:
    """Return the address of a process's socket. Long names are shortened by a hash."""
    if len(name) > MAX_SOCKET_NAME:
        name = f"{name[:8]}-{hashlib.sha256(name.encode()).hexdigest()[: MAX_SOCKET_NAME - 9]}"
    return f"unix:{state.sockets / name}.sock"


def on_devices(settings: SuiteSettings, service: str, spec: ProcessSpec) -> ProcessSpec:
    """Return the process with the GPUs that it may run on, and the argument that makes it use one."""
    devices = settings.devices_of(service)
    if devices is None:
        return replace(spec, arguments=(*spec.arguments, "--device", settings.device))
    return replace(spec, arguments=(*spec.arguments, "--device", "cuda" if devices else CPU), devices=devices)


def shared_arguments(settings: SuiteSettings, instance: str) -> tuple[str, ...]:
    arguments = ["--instance-id", instance]
    if settings.config_file:
        arguments += ["--config", str(settings.config_file)]
    if settings.token_file:
        arguments += ["--token-file", str(settings.token_file)]
    return tuple(arguments)


def caller_arguments(settings: SuiteSettings, state: StateDirectory) -> tuple[str, ...]:
    """Return the flags of a process that calls others: the controller's address, and the token for its calls."""
    token = ("--service-token-file", str(settings.service_token_file)) if settings.service_token_file else ()
    return ("--controller-address", unix_address(state, "controller"), *token)


def grant_arguments(settings: SuiteSettings) -> tuple[str, ...]:
    """Return the flags of the gateway, which signs grants, and of workers, which check them."""
    return ("--grant-key-file", str(settings.grant_key_file)) if settings.grant_key_file else ()


def signing_arguments(settings: SuiteSettings) -> tuple[str, ...]:
    """Return the flags of the frontdoor, which signs addresses of images, and of the edge, which serves them."""
    return ("--signing-key-file", str(settings.signing_key_file)) if settings.signing_key_file else ()


def stores(settings: SuiteSettings, state: StateDirectory) -> Path:
    """Return the folder of the stores. Emulated images have a separate one: real models would start from them."""
    return state.path / "emulated" if settings.emulated is not None else state.path


def objects_url(settings: SuiteSettings, state: StateDirectory) -> str:
    return f"file://{quote(str(stores(settings, state) / 'objects'))}"


def index_url(settings: SuiteSettings, state: StateDirectory) -> str:
    return f"edge://{quote(str(stores(settings, state) / 'index'))}"


def ledger_url(settings: SuiteSettings, state: StateDirectory, service: str) -> str:
    return f"sqlite:///{quote(str(stores(settings, state) / f'{service}.sqlite'))}"


def embedder(settings: SuiteSettings, state: StateDirectory, number: int) -> ProcessSpec:
    """Return one embedder; the first has the name in the settings of other processes."""
    name = f"embedder-{number}" if number else "embedder"
    address = unix_address(state, name)
    arguments: tuple[str, ...] = (
        "--listen",
        address,
        "--encoder",
        str(settings.encoder),
        "--threads",
        str(settings.threads),
    )
    arguments += shared_arguments(settings, name) + caller_arguments(settings, state)
    module = settings.emulated.embedder_module if settings.emulated is not None else "services.embedder"
    return ProcessSpec(name, module, arguments, address, CACHE_STAGE)


def gateway(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "gateway")
    arguments: tuple[str, ...] = (
        "--listen",
        address,
        "--index-url",
        index_url(settings, state),
        "--objects-url",
        objects_url(settings, state),
    )
    arguments += ("--ledger-url", ledger_url(settings, state, "gateway"))
    arguments += reuse_arguments(settings)
    arguments += grant_arguments(settings) + shared_arguments(settings, "gateway") + caller_arguments(settings, state)
    return ProcessSpec("gateway", "services.vectordb_gateway", arguments, address, CACHE_STAGE)


def controlnet_replica(settings: SuiteSettings, state: StateDirectory, number: int) -> ProcessSpec:
    """Return one ControlNet service."""
    name = f"controlnet-{number}"
    address = unix_address(state, name)
    arguments: tuple[str, ...] = ("--listen", address, "--controlnets", str(settings.controlnets))
    arguments += ("--threads", str(settings.threads))
    arguments += shared_arguments(settings, name) + caller_arguments(settings, state)
    spec = ProcessSpec(name, "services.controlnet_svc", arguments, address, CACHE_STAGE)
    return on_devices(settings, "controlnet_svc", spec)


def reuse_arguments(settings: SuiteSettings) -> tuple[str, ...]:
    """Return the gateway's flags for reuse. Emulated models cannot be measured: their fleet's file has the tables."""
    follows = ("--follow-plan",) if settings.policy else ()
    if settings.emulated is not None:
        return (*settings.emulated.gateway_arguments(), *settings.cache, *follows)
    unprofiled = ("--unprofiled-reuse",) if settings.unprofiled_reuse else ()
    return (*profile_arguments(settings.profiles), *settings.cache, *unprofiled, *follows)


def controller(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "controller")
    arguments: tuple[str, ...] = ("--listen", address, "--ledger-url", ledger_url(settings, state, "controller"))
    arguments += ("--objects-url", objects_url(settings, state))
    arguments += shared_arguments(settings, "controller")
    if settings.emulated is not None:
        arguments += settings.emulated.controller_arguments(settings.config_file, settings.small)
    if settings.policy:
        arguments += ("--allocator", settings.policy)
    if settings.modm_mode:
        arguments += ("--modm-mode", settings.modm_mode)
    if settings.cascade is not None:
        arguments += planned_cascade(settings, settings.cascade)
    elif settings.policy and settings.emulated is None:
        arguments += planned_models(settings.models, settings.small, settings.config_file)
    if settings.slo_s is not None:
        arguments += ("--slo-s", str(settings.slo_s))
    return ProcessSpec("controller", "services.controller", arguments, address, CONTROLLER_STAGE)


def planned_cascade(settings: SuiteSettings, cascade: ServedCascade) -> tuple[str, ...]:
    """Return the controller's flags for the cascade: the models of the chosen policy, else, with an SLO, the name of
    the cascade, which is planned once it is registered."""
    if settings.policy:
        light, heavy = cascade.models
        small = ("--small", ",".join(settings.small)) if settings.small else ()
        return ("--light", light, "--heavy", heavy, *small)
    return ("--cascade", cascade.name) if settings.slo_s is not None else ()


def worker(settings: SuiteSettings, state: StateDirectory, model: ModelDirectory, number: int) -> ProcessSpec:
    name = f"{model.name}-{number}"
    address = unix_address(state, name)
    arguments: tuple[str, ...] = ("--listen", address, "--model", str(model.path), "--model-name", model.name)
    arguments += (
        "--objects-url",
        objects_url(settings, state),
        "--threads",
        str(settings.threads),
    )
    if model.digest:
        arguments += ("--expected-model-digest", model.digest)
    others = [
        f"{other.path}@{other.digest}" if other.digest else str(other.path)
        for other in settings.models
        if other != model
    ]
    if (settings.policy or (settings.cascade is not None and settings.slo_s is not None)) and others:
        arguments += ("--other-models", listed("model", others))
    arguments += profile_arguments(settings.profiles)
    if settings.loras is not None:
        arguments += ("--adapters-dir", str(settings.loras))
    arguments += ("--lora-cache-dir", str(state.path / "loras"))
    arguments += grant_arguments(settings) + shared_arguments(settings, name) + caller_arguments(settings, state)
    spec = ProcessSpec(name, "services.unet_worker", arguments, address, WORKER_STAGE)
    return on_devices(settings, f"unet_worker/{model.name}", spec)


def discriminator(settings: SuiteSettings, state: StateDirectory, cascade: ServedCascade) -> ProcessSpec:
    address = unix_address(state, "discriminator")
    arguments: tuple[str, ...] = ("--listen", address, "--threads", str(settings.threads))
    scored = (f"{pair}={directory}" for pair, directory in cascade.scored())
    arguments += ("--cascades", listed("discriminator", scored))
    arguments += shared_arguments(settings, "discriminator") + caller_arguments(settings, state)
    return ProcessSpec("discriminator", "services.discriminator", arguments, address, WORKER_STAGE)


def frontdoor(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "frontdoor")
    listen = f"{address},{settings.public}" if settings.public else address
    arguments: tuple[str, ...] = (
        "--listen",
        listen,
        "--ledger-url",
        ledger_url(settings, state, "frontdoor"),
    )
    arguments += ("--objects-url", objects_url(settings, state), "--default-model", settings.default_model)
    arguments += profile_arguments(settings.profiles)
    if settings.emulated is not None:
        arguments += settings.emulated.frontdoor_arguments(stores(settings, state))
    elif settings.cascade is not None:
        arguments += cascade_arguments(settings.cascade.models, settings.cascade.confidence_threshold)
    if settings.cached:
        embedder_address, gateway_address = unix_address(state, "embedder"), unix_address(state, "gateway")
        arguments += ("--embedder-address", embedder_address, "--gateway-address", gateway_address)
    if settings.thinning != "load":
        arguments += ("--thinning", settings.thinning)
    if settings.pipelining != "auto":
        arguments += ("--controlnet-pipelining", settings.pipelining)
    if settings.handover != "auto":
        arguments += ("--handover", settings.handover)
    if settings.admin:
        arguments += ("--admin-listen", settings.admin)
    arguments += signing_arguments(settings)
    arguments += shared_arguments(settings, "frontdoor") + caller_arguments(settings, state)
    return ProcessSpec("frontdoor", "services.frontdoor", arguments, address, FRONTDOOR_STAGE)


def edge(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    """Return the HTTP edge. Callers use their own rights; its own token only reads the history of the charts."""
    address = unix_address(state, "edge")
    arguments: tuple[str, ...] = ("--listen", address, "--http-listen", settings.http)
    arguments += ("--frontdoor-address", unix_address(state, "frontdoor"))
    arguments += caller_arguments(settings, state)
    if is_local(settings.http):
        # There is no load balancer in front of a local address.
        arguments += ("--drain-delay-s", "0")
    if settings.cached:
        arguments += ("--gateway-address", unix_address(state, "gateway"))
    if settings.signing_key_file:
        arguments += ("--files-url", objects_url(settings, state), *signing_arguments(settings))
    return ProcessSpec("edge", "services.edge", arguments + shared_arguments(settings, "edge"), address, EDGE_STAGE)


def cascade_arguments(models: tuple[str, ...], confidence_threshold: float | None) -> tuple[str, ...]:
    threshold = () if confidence_threshold is None else ("--confidence-threshold", str(confidence_threshold))
    return ("--cascade", ",".join(models), *threshold)


def profile_arguments(profiles: tuple[Path, ...]) -> tuple[str, ...]:
    return ("--profiles", listed("profiles", profiles)) if profiles else ()


def listed(option: str, values: Iterable[object]) -> str:
    """Return the values as a list that services can read. Raises InvalidArgument for a value that they would split or
    strip."""
    texts = [str(value) for value in values]
    for text in texts:
        if "," in text or text != text.strip():
            limit = "must be a path without a comma and without spaces at its ends"
            raise InvalidArgument.of(option, f"{limit}, got {text}")
    return ",".join(texts)

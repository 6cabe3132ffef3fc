"""Which processes make up a local suite, and what each is told. The services themselves are never imported."""

from dataclasses import dataclass
from pathlib import Path

from pentimento.sdk.supervisor.models import ModelDirectory
from pentimento.sdk.supervisor.state import StateDirectory


@dataclass(frozen=True)
class SuiteSettings:
    """`copies` workers for each model; `public` is the host:port of the public API beside its unix socket."""

    models: tuple[ModelDirectory, ...]
    encoder: Path
    copies: int = 1
    public: str = ""
    device: str = "auto"
    threads: int = 1
    config_file: Path | None = None
    token_file: Path | None = None
    service_token_file: Path | None = None


@dataclass(frozen=True)
class ProcessSpec:
    """`address` answers health checks. Stages drain in ascending order: who calls stops before those it calls.

    The suite cannot go on when nobody is left of those that are `needed` under one name.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    address: str
    stage: int
    needed: str = ""


FRONTDOOR_STAGE, WORKER_STAGE, CACHE_STAGE, CONTROLLER_STAGE = range(4)


@dataclass(frozen=True)
class Suite:
    processes: tuple[ProcessSpec, ...]

    @property
    def stages(self) -> list[tuple[ProcessSpec, ...]]:
        stages = sorted({process.stage for process in self.processes})
        return [tuple(process for process in self.processes if process.stage == stage) for stage in stages]


def plan_suite(settings: SuiteSettings, state: StateDirectory) -> Suite:
    """Every service once and a worker for each copy of each model: unix sockets, stores in the state directory."""
    workers = [
        worker(settings, state, model, f"{model.name}-{copy}")
        for model in settings.models
        for copy in range(settings.copies)
    ]
    return Suite(
        (
            embedder(settings, state),
            gateway(settings, state),
            controller(settings, state),
            *workers,
            frontdoor(settings, state),
        )
    )


def unix_address(state: StateDirectory, name: str) -> str:
    return f"unix:{state.sockets / name}.sock"


def shared_arguments(settings: SuiteSettings, instance: str) -> tuple[str, ...]:
    arguments = ["--instance-id", instance]
    if settings.config_file:
        arguments += ["--config", str(settings.config_file)]
    if settings.token_file:
        arguments += ["--token-file", str(settings.token_file)]
    return tuple(arguments)


def caller_arguments(settings: SuiteSettings, state: StateDirectory) -> tuple[str, ...]:
    """Of a process that calls others: the controller's address and the token it shows them."""
    token = ("--service-token-file", str(settings.service_token_file)) if settings.service_token_file else ()
    return ("--controller-address", unix_address(state, "controller"), *token)


def objects_url(state: StateDirectory) -> str:
    return f"file://{state.path / 'objects'}"


def embedder(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "embedder")
    arguments: tuple[str, ...] = (
        "--listen",
        address,
        "--encoder",
        str(settings.encoder),
        "--threads",
        str(settings.threads),
    )
    arguments += shared_arguments(settings, "embedder") + caller_arguments(settings, state)
    return ProcessSpec("embedder", "services.embedder", arguments, address, CACHE_STAGE)


def gateway(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "gateway")
    arguments: tuple[str, ...] = (
        "--listen",
        address,
        "--index-url",
        f"edge://{state.path / 'index'}",
        "--objects-url",
        objects_url(state),
    )
    arguments += ("--ledger-url", f"sqlite:///{state.path / 'gateway.sqlite'}")
    arguments += shared_arguments(settings, "gateway") + caller_arguments(settings, state)
    return ProcessSpec("gateway", "services.vectordb_gateway", arguments, address, CACHE_STAGE)


def controller(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "controller")
    arguments: tuple[str, ...] = ("--listen", address, *shared_arguments(settings, "controller"))
    return ProcessSpec("controller", "services.controller", arguments, address, CONTROLLER_STAGE)


def worker(settings: SuiteSettings, state: StateDirectory, model: ModelDirectory, name: str) -> ProcessSpec:
    address = unix_address(state, name)
    arguments: tuple[str, ...] = ("--listen", address, "--model", str(model.path), "--model-name", model.name)
    arguments += ("--objects-url", objects_url(state), "--device", settings.device, "--threads", str(settings.threads))
    arguments += shared_arguments(settings, name) + caller_arguments(settings, state)
    return ProcessSpec(name, "services.unet_worker", arguments, address, WORKER_STAGE, "worker")


def frontdoor(settings: SuiteSettings, state: StateDirectory) -> ProcessSpec:
    address = unix_address(state, "frontdoor")
    listen = f"{address},{settings.public}" if settings.public else address
    arguments: tuple[str, ...] = ("--listen", listen, "--ledger-url", f"sqlite:///{state.path / 'frontdoor.sqlite'}")
    arguments += ("--objects-url", objects_url(state), "--default-model", settings.models[0].name)
    arguments += (
        "--embedder-address",
        unix_address(state, "embedder"),
        "--gateway-address",
        unix_address(state, "gateway"),
    )
    arguments += shared_arguments(settings, "frontdoor") + caller_arguments(settings, state)
    return ProcessSpec("frontdoor", "services.frontdoor", arguments, address, FRONTDOOR_STAGE, "frontdoor")

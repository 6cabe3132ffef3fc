"""`pentimento up`: from options to a supervised suite."""

import importlib.util
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pentimento.cli.connection import PRESENT, state_dir_option
from pentimento.cli.control import start_detached
from pentimento.cli.options import FiniteRange, json_option
from pentimento.cli.programs import RenamedOptions
from pentimento.cli.suite_running import run_suite, with_free_port
from pentimento.devices.choices import WeightStorage
from pentimento.files.discriminator_records import check_informative
from pentimento.files.private_files import keep_files_private
from pentimento.plugins import SUITES, check_policy, load_plugin
from pentimento.rpc.settings import RpcServerSettings, check_http_address
from pentimento.settings.loading import setting_of
from pentimento.settings.sources import COMMON
from pentimento.supervisor.devices import read_devices, read_places
from pentimento.supervisor.models import (
    DEFAULT_ENCODER,
    DEFAULT_MODEL,
    ModelDirectory,
    find_controlnets,
    find_discriminator,
    find_encoder,
    find_loras,
    find_model,
    find_models,
    with_shipped,
)
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite_settings import ServedCascade, SuitePlugin, SuiteSettings

HTTP_PACKAGES = ("starlette", "uvicorn", "httptools", "python_multipart")
# Options that are settings of the suite under the same name.
UNCHANGED: tuple[str, ...] = (
    "copies",
    "device",
    "threads",
    "policy",
    "slo_s",
    "thinning",
    "feature_reuse",
    "handover",
    "unprofiled_reuse",
    "earned_reuse",
)
UNCHANGED += ("controlnet_copies", "depth_model", "pipelining", "weights", "embeddings", "ip_adapters")
# Options that are settings of the gateway.
CACHE = ("reuse_rule", "eviction", "cache_bias", "scratch_share", "renoised_share", "match_predictor")


@click.command(cls=RenamedOptions)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME|DIR|FILE[@sha256:…]",
    help="a model to serve, optionally only with this digest; may be repeated [tiny-heavy]",
)
@click.option(
    "--workers",
    "copies",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="workers per model; with --policy many-models, of all models together",
)
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, metavar="NAME|DIR", help="retrieval encoder")
@state_dir_option
@click.option("--listen", default="127.0.0.1:50400", show_default=True, help="host:port of the gRPC API; '' for none")
@click.option(
    "--http",
    default="127.0.0.1:50480",
    show_default=True,
    help="host:port of HTTP: the OpenAI images API and the console; '' for none",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--devices",
    default="",
    metavar="0,1,…",
    help="GPUs for models, ControlNets, encoder and discriminator, by nvidia-smi's index or UUID [the first]",
)
@click.option(
    "--place",
    "places",
    multiple=True,
    metavar="SERVICE=GPU,…|cpu",
    help="GPUs of controlnet_svc, discriminator, embedder, unet_worker or unet_worker/MODEL; overrides --devices; "
    "may be repeated",
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True, help="torch threads per process")
@click.option(
    "--weights",
    type=click.Choice([storage.value for storage in WeightStorage]),
    default="auto",
    show_default=True,
    help="how models are stored: full precision, or eight bits with half the memory of float16 and about its images;"
    " auto: fp8 for files in fp8, else full",
)
@click.option("--config", "config_file", type=PRESENT, help="TOML settings for every service")
@click.option(
    "--token-file",
    type=PRESENT,
    help="tokens of callers (see `pentimento token new`); without it anyone may call",
)
@click.option(
    "--admin-listen",
    default="",
    metavar="ADDRESS",
    help="unix:/path or host:port for `pentimento tenant`, with --token-file [none]",
)
@click.option(
    "--emulate",
    type=PRESENT,
    metavar="FLEET.TOML",
    help="emulated devices instead of models",
)
@click.option("--policy", default="", metavar="NAME", help="policy of the controller, such as diffserve [resident]")
@click.option(
    "--modm-mode",
    type=click.Choice(["quality", "throughput"]),
    help="what --policy modm optimises: quality, with as many large workers as the hits allow, or throughput [quality]",
)
@click.option(
    "--small",
    default="",
    metavar="MODEL,…",
    help="models that refine cached images, best first, with --policy modm, joint or resident-mixture: modm changes to"
    " a later one under load [the other models]",
)
@click.option(
    "--slo-s",
    type=FiniteRange(min=0.0, min_open=True),
    help="latency objective of the policy",
)
@click.option(
    "--profiles",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    metavar="FILE|DIR",
    help="measured by `pentimento profile`, any kind; may be repeated [reuse and steps of the tiny models]",
)
@click.option(
    "--thinning",
    type=click.Choice(["off", "deadline", "load", "always"]),
    default="load",
    show_default=True,
    help="skip steps that a model's profile allows: to meet a deadline, also under load, or always",
)
@click.option(
    "--feature-reuse",
    type=click.Choice(["asked", "auto"]),
    default="asked",
    show_default=True,
    help="reuse deep features of earlier steps where a model's profile allows it: if asked, or unless refused",
)
@click.option(
    "--handover",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="start a cascade's later model from the earlier one's image where a hand-over profile of both allows it",
)
@click.option("--unprofiled-reuse", is_flag=True, help="also reuse latents of models without a reuse profile")
@click.option(
    "--earned-reuse/--no-earned-reuse",
    default=True,
    show_default=True,
    help="reuse latents from similarities on that trials have shown to keep the quality, also without a profile",
)
@click.option(
    "--reuse-rule",
    type=click.Choice(["profile", "minimum", "lower_bound", "mean"]),
    help="which reuse profile serves where a model has several [mean with --policy modm, else profile: the most"
    " cautious]",
)
@click.option(
    "--eviction",
    type=click.Choice(["fifo", "lru", "lfu", "lcbfu", "aged", "none"]),
    help="rule of a full cache: fifo evicts entries, others single latents and images [the policy's, else aged]",
)
@click.option(
    "--cache-bias",
    type=click.IntRange(-10, 10),
    help="tenths of the steps by which hits skip more (above 0) or less; 10: the stored image itself"
    " [the policy's, else 0]",
)
@click.option(
    "--scratch-share", type=FiniteRange(0.0, 1.0), help="share of requests that never use the cache, for diversity"
)
@click.option(
    "--renoised-share",
    type=FiniteRange(0.0, 1.0),
    help="share of its K steps by which a start of another seed's image is noised again",
)
@click.option(
    "--match-predictor",
    type=click.Choice(["auto", "off", "always"]),
    help="predict misses before a search: while it gains time (auto), never, or always",
)
@click.option(
    "--controlnets",
    default="",
    metavar="tiny|REGISTRY.JSON",
    help="serve the ControlNets of a registry; `tiny`: the tiny models' [none]",
)
@click.option(
    "--depth-model",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="directory of a depth model (Depth Anything, DPT): ControlNets may preprocess images with it [none]",
)
@click.option(
    "--controlnet-pipelining",
    "pipelining",
    type=click.Choice(["off", "on", "auto"]),
    default="auto",
    show_default=True,
    help="residuals one step old where a profile allows it: never, always, or if images waited for them",
)
@click.option(
    "--loras",
    default="",
    metavar="tiny|DIR",
    help="serve the LoRAs of a directory: of its registry.json, or each file or folder by name; `tiny`: the tiny"
    " models' [none]",
)
@click.option(
    "--embeddings",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="directory of textual inversions: safetensors files, each a word of prompts by its name [none]",
)
@click.option(
    "--ip-adapters",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="directory of IP-Adapters: safetensors files by name, in it or in its folders, each next to its"
    " `image_encoder` [none]",
)
@click.option(
    "--controlnet-replicas",
    "controlnet_copies",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="ControlNet processes",
)
@click.option(
    "--cascade",
    default="",
    metavar="LIGHT,…,HEAVY",
    help="models for requests without one: the first, and the next if a discriminator's confidence is low; with --slo-s"
    " planned once it is registered by `pentimento models` [none]",
)
@click.option(
    "--discriminator",
    "discriminators",
    multiple=True,
    metavar="NAME|DIR",
    help="of the cascade, one for each model but the last, in order [the registered ones]",
)
@click.option(
    "--confidence-threshold",
    type=FiniteRange(0.0, 1.0),
    help="light images below it are deferred, while the plan has no threshold [the discriminator's own]",
)
@json_option
@click.option(
    "--logs/--quiet",
    "show_logs",
    default=False,
    help="also show the services' logs, which are in the state directory [quiet]",
)
@click.option("--detach", is_flag=True, help="return when all serve; `pentimento down` stops them")
def up(state_dir: Path, show_logs: bool, detach: bool, as_json: bool, **options: Any) -> int:
    """Start embedder, gateway, controller, workers and frontdoor, and keep them running. Ctrl-C drains and stops them.
    Prints a line per serving process, and the suite's addresses once every worker has registered; with --json one
    line."""
    keep_files_private()
    settings, state = suite_settings(options), StateDirectory(state_dir)
    if detach:
        return start_detached(state, as_json=as_json)
    return run_suite(settings, state, show_logs=show_logs and not as_json, as_json=as_json)


def suite_settings(options: dict[str, Any]) -> SuiteSettings:
    """Return the suite that the options describe. Raises UsageError, SettingsError, NotFound and InvalidArgument."""
    emulated = emulated_devices(options["emulate"], options["models"], options["profiles"])
    encoder = find_encoder(options["encoder"]).path
    check_planning(options["policy"], options["modm_mode"])
    cascade = served_cascade(options, encoder)
    given, small = served_small(options["small"], options["policy"], emulated)
    if emulated is not None and cascade is not None:
        raise click.UsageError("--cascade and --emulate exclude each other: the fleet's file has its cascade")
    models = find_models(with_planned(options["models"], cascade, given)) if emulated is None else ()
    devices, places = gpu_places(options["devices"], options["places"], models)
    token_file = options["token_file"] or token_file_of_all(options["config_file"])
    return SuiteSettings(
        models=models,
        cascade=cascade,
        encoder=encoder,
        public=with_free_port("--listen", options["listen"]),
        http=with_free_port("--http", served_http(options["http"]), check_http_address),
        admin=administered(options["admin_listen"], token_file),
        config_file=absolute(options["config_file"]),
        token_file=absolute(token_file),
        emulated=emulated,
        modm_mode=options["modm_mode"] or "",
        small=small,
        profiles=with_shipped(options["profiles"], encoder) if emulated is None else (),
        cache=cache_arguments(options),
        controlnets=find_controlnets(options["controlnets"]),
        loras=find_loras(options["loras"]),
        devices=devices,
        places=places,
        **{name: options[name] for name in UNCHANGED},
    )


def with_planned(models: tuple[str, ...], cascade: ServedCascade | None, small: tuple[str, ...]) -> tuple[str, ...]:
    """Return the given models with those of the cascade and of --small. The first one is the default: the heavy one of
    a cascade, unless another is given."""
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


def served_cascade(options: dict[str, Any], encoder: Path) -> ServedCascade | None:
    """Return the cascade of `--cascade`, None without it; registered discriminators that read prompts must read those
    of `encoder`. Raises UsageError, NotFound, and FailedPrecondition for a discriminator without information."""
    if not options["cascade"]:
        return None
    given = tuple(name.strip() for name in options["cascade"].split(","))
    names = tuple(find_model(one).name for one in given if one)
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
        check_informative(directory, ">".join(pair))
    if len(names) > 2 and options["policy"]:
        raise click.UsageError("--policy plans cascades of two models; --slo-s plans longer ones, once registered")
    return ServedCascade(names, found, options["confidence_threshold"], given)


def served_small(models: str, policy: str, emulated: SuitePlugin | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models of `--small` as they were given, and their names; of emulated devices the names alone. Raises
    UsageError, and NotFound for an unknown one."""
    given = tuple(name.strip() for name in models.split(",")) if models else ()
    if given and not policy:
        raise click.UsageError("--small needs --policy modm, joint or resident-mixture, which plan with small models")
    known = emulated.models if emulated is not None else None
    if known is not None and (strangers := [name for name in given if name not in known]):
        raise click.UsageError(f"--small must be some of the fleet's {', '.join(known)}, got {strangers[0]!r}")
    names = given if known is not None else tuple(find_model(one).name for one in given if one)
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


def absolute(path: Path | None) -> Path | None:
    return path.resolve() if path else None


def cache_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Return the gateway's flags for the options that were given."""
    usual = {"reuse_rule": "mean"} if options["policy"] == "modm" else {}
    found = {name: usual.get(name) if options[name] is None else options[name] for name in CACHE}
    given = ((name, value) for name, value in found.items() if value is not None)
    return tuple(word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value)))

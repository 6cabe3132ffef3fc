"""`pentimento up`: from options to a supervised suite."""

from pathlib import Path
from typing import Any

import click

from pentimento.cli.connection import PRESENT, state_dir_option
from pentimento.cli.control import start_detached
from pentimento.cli.options import FiniteRange, json_option
from pentimento.cli.suite_options import suite_settings
from pentimento.cli.suite_running import run_suite
from pentimento.devices.choices import TextEncoderPlace, WeightStorage
from pentimento.files.private_files import keep_files_private
from pentimento.supervisor.models import DEFAULT_ENCODER
from pentimento.supervisor.state import StateDirectory

RESOLVED = click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)


@click.command
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME|DIR|FILE|s3://…[@sha256:…]",
    help="a model to serve, optionally only with this digest: a tiny or registered one (`models add`), a directory or"
    " file, or one in S3, with its digest; may be repeated [tiny-heavy]",
)
@click.option(
    "--workers",
    "copies",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="workers per model; with --policy many-models, of all models together",
)
@click.option(
    "--cells",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="frontdoors, each with its own journal; tenants are divided between them, so this needs --token-file to help",
)
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, metavar="NAME|DIR", help="retrieval encoder")
@click.option(
    "--image-encoder",
    metavar="NAME|DIR",
    help="a second encoder, such as a CLIP, that finds images by their look; --encoder then finds latents by their"
    " prompts [the same]",
)
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
    help="how models are stored: full precision, or eight bits with half the memory of float16 and about its images;"
    " auto: fp8 for files in fp8, else full [auto]",
)
@click.option(
    "--text-encoders",
    type=click.Choice([place.value for place in TextEncoderPlace]),
    help="memory of text encoders between prompts: the GPU's, or the host's, which delays each new prompt by the copy;"
    " auto: the host's where a model would not fit its GPU [auto]",
)
@click.option(
    "--tile-px",
    type=click.IntRange(0, 8192),
    help="decode images with a longer side in tiles of this side, with less memory and slightly other pixels;"
    " 0: whole [0]",
)
@click.option("--config", "config_file", type=RESOLVED, help="TOML settings for every service")
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
    help="skip steps that a model's profile allows: to meet a deadline, also under load, or always [load]",
)
@click.option(
    "--feature-reuse",
    type=click.Choice(["asked", "auto"]),
    help="reuse deep features of earlier steps where a model's profile allows it: if asked, or unless refused [auto]",
)
@click.option(
    "--handover",
    type=click.Choice(["auto", "off"]),
    help="start a cascade's later model from the earlier one's image where a hand-over profile of both allows it"
    " [auto]",
)
@click.option(
    "--earned-reuse/--no-earned-reuse",
    default=True,
    show_default=True,
    help="reuse latents and images from similarities on that trials have shown to keep the quality, also without a "
    "profile",
)
@click.option(
    "--profile-rule",
    type=click.Choice(["profile", "minimum", "lower_bound", "mean"]),
    help="quality that profiles must keep: of every image, of 95 %, on average, or by their own rule; of several reuse"
    " profiles of a model one for this rule serves [profile; the cache's mean with --policy modm]",
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
    help="serve the ControlNets of a registry, and its depth model; `tiny`: the tiny models' [none]",
)
@click.option(
    "--controlnet-pipelining",
    type=click.Choice(["off", "on", "auto"]),
    help="residuals one step old where a profile allows it: never, always, or if images waited for them [auto]",
)
@click.option(
    "--adapters",
    default="",
    metavar="tiny|DIR",
    help="serve the LoRAs of a directory, of its registry.json or each file or folder by name, the textual inversions"
    " of its folder `embeddings`, and the IP-Adapters of `ip-adapters`; `tiny`: the tiny models' LoRAs [none]",
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
@click.option(
    "--prompt-classifier",
    type=DIRECTORY,
    help="directory of a transformers classifier of texts: prompts with one of --unsafe-labels are refused [none]",
)
@click.option(
    "--image-classifier",
    type=DIRECTORY,
    help="directory of a transformers classifier of images: images with one of --unsafe-labels are not returned [none]",
)
@click.option(
    "--registry-public-keys",
    type=RESOLVED,
    help="PEM file of ed25519 public keys: models, LoRAs and ControlNets are loaded only by signed entries [none]",
)
@click.option(
    "--unsafe-labels", default="", metavar="LABEL,…", help="labels of both classifiers that are unsafe [nsfw,unsafe]"
)
@click.option(
    "--c2pa-certificate-file",
    type=RESOLVED,
    help="PEM certificates, the signer's first, and its private key: images carry signed C2PA manifests [none]",
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
    state = StateDirectory(state_dir)
    settings = suite_settings(options, state)
    if detach:
        return start_detached(state, as_json=as_json)
    return run_suite(settings, state, show_logs=show_logs and not as_json, as_json=as_json)

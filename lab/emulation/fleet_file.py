"""Read a fleet of emulated devices from its file: the costs of models, and the devices that hold them.

    seed = 7
    batching = "steps"                          # or "requests"
    [[models]]
    name = "tiny-heavy"
    profile = "profiles/tiny-heavy.json"        # from `pentimento profile cost`; or latency_s and steps
    recording = "../../zoo/replay/recorded"     # images, qualities, confidences; without it, made up
    load_s = 4.0
    swap_s = 0.5                                # of it, on the device, if host memory has room for the next model
    [[devices]]
    name = "small"
    count = 16
    models = ["tiny-heavy"]                     # the first one is held at the start
    speed = 0.5                                 # twice the profiled time; on shared devices
    speed_variation = 0.1                       # a tenth more or less of it, changing every two seconds
    speed_period_s = 2.0

`[reuse.latents]` and `[reuse.images]` have the tables `similarity` and `saved_share` of the cache; without them latents
are reused by NIRVANA's. `[adapters]` follows `lab.emulation.adapter_costs`. The emulated worker, the suite's plug-in
and the parity benchmark read the file.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lab.emulation.adapter_costs import NO_ADAPTER_COSTS, AdapterCosts, adapter_costs
from lab.emulation.cost_draws import slower
from lab.emulation.png_text import text_of, with_text
from lab.emulation.speed import STEADY, SpeedChanges
from lab.files.thresholds import read_thresholds
from lab.files.toml_document import TomlTable, read_toml
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.fleet import MAX_COST_S, MIN_COST_S
from pentimento.domain.models import MODEL_NAME_RULE, is_model_name
from pentimento.policies.cache_selection import Thresholds
from pentimento.profiles.costs import NOTHING, BatchProfile, Cost, ModelProfile, SizeProfile, costs_from_json, steady

MAX_DEVICES = 1024
GUIDANCE_SCALE = 3.0


@dataclass(frozen=True)
class EmulatedModel:
    """A model of the fleet. `steps` and `guidance_scale` are the defaults of requests. `load` is the time to replace
    another model; with a `swap`, the time to read it while that one generates, and `swap` that to replace it. Without a
    `recording`, `quality` is the mean of all images; the most confident ones are better by half of `quality_spread`,
    the least confident worse. A start from the cache keeps `reuse_quality` of it. `steps_profile` says which steps may
    be skipped, as measured on a real model."""

    name: str
    profile: ModelProfile
    width_px: int
    height_px: int
    steps: int
    guidance_scale: float
    load: Cost = NOTHING
    swap: Cost | None = None
    recording: Path | None = None
    quality: float | None = None
    quality_spread: float = 0.0
    reuse_quality: float = 1.0
    steps_profile: Path | None = None

    @property
    def guided(self) -> bool:
        return self.guidance_scale > 1.0


@dataclass(frozen=True)
class EmulatedDevices:
    """`count` equal ones. Speed 2 takes half the profiled time; it changes by `speed_changes`. `memory_bytes` bounds
    models and batches, None does not; `max_batch` requests share a step at most."""

    name: str
    count: int
    models: tuple[str, ...]
    speed: float = 1.0
    memory_bytes: int | None = None
    max_batch: int = 8
    speed_changes: SpeedChanges = STEADY

    def workers(self) -> tuple[str, ...]:
        """Instance ids."""
        return tuple(f"{self.name}-{number}" for number in range(self.count))


@dataclass(frozen=True)
class EmulatedDiscriminator:
    """Discriminators: `count` processes that each score one image at a time, at the cost `score`."""

    score: Cost
    count: int = 1


@dataclass(frozen=True)
class EmulatedReuse:
    """The cache's tables for latents and for images, of all models; similarities are of prompts, since an emulated
    image is embedded as the prompt that it was generated for."""

    latents: Thresholds = ()
    images: Thresholds = ()


@dataclass(frozen=True)
class EmulatedFleet:
    """A fleet. `step_batching`: requests join and leave a batch at any step; otherwise a batch runs from its first to
    its last step. `cache`: start embedder and gateway; `reuse`: its tables, None for NIRVANA's latents. `cascade`:
    models of requests that name none, light first; images below `confidence_threshold` are deferred. `deferral`: f(t)
    of the cascade as points (threshold, share of images with a confidence up to it), for models without a recording."""

    path: Path
    models: tuple[EmulatedModel, ...]
    devices: tuple[EmulatedDevices, ...]
    seed: int = 0
    default_model: str = ""
    step_batching: bool = True
    preempt: bool = True
    cache: bool = False
    reuse: EmulatedReuse | None = None
    cascade: tuple[str, ...] = ()
    confidence_threshold: float = 0.0
    discriminator: EmulatedDiscriminator | None = None
    deferral: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1.0, 1.0))
    adapters: AdapterCosts = NO_ADAPTER_COSTS

    def model(self, name: str) -> EmulatedModel:
        """KeyError for a stranger."""
        return {model.name: model for model in self.models}[name]

    def devices_named(self, name: str) -> EmulatedDevices:
        """InvalidArgument for a stranger."""
        for devices in self.devices:
            if devices.name == name:
                return devices
        known = ", ".join(devices.name for devices in self.devices)
        raise InvalidArgument.of("devices", f"{self.path}: must be one of {known}, got {name!r}")


def read_fleet(path: Path) -> EmulatedFleet:
    """NotFound without the file; InvalidArgument that names file, line, field and limit."""
    table = read_toml(path)
    models = tuple(_model(entry) for entry in table.tables("models"))
    devices = tuple(_devices(entry, models) for entry in table.tables("devices"))
    _check_names(table, "models", [model.name for model in models])
    _check_names(table, "devices", [entry.name for entry in devices])
    if sum(entry.count for entry in devices) > MAX_DEVICES:
        raise table.error("devices", f"must be at most {MAX_DEVICES} in all")
    fleet = EmulatedFleet(
        path=path.resolve(),
        models=models,
        devices=devices,
        seed=table.whole("seed", 0),
        default_model=_one_of(table, "default_model", [model.name for model in models], devices[0].models[0]),
        step_batching=_one_of(table, "batching", ["steps", "requests"], "steps") == "steps",
        preempt=table.flag("preempt", True),
        cache=table.flag("cache", False),
        reuse=_reuse(table.table("reuse")),
        cascade=_cascade(table, [model.name for model in models]),
        confidence_threshold=table.number("confidence_threshold", 0.0, maximum=1.0),
        discriminator=_discriminator(table.table("discriminator")),
        deferral=_deferral(table.table("deferral")),
        adapters=adapter_costs(table.table("adapters"), named=True),
    )
    table.close()
    return fleet


def _model(table: TomlTable) -> EmulatedModel:
    name = table.text("name")
    if not is_model_name(name):
        raise table.error("name", f"{MODEL_NAME_RULE}, got {name[:80]!r}")
    profile = _profile(table, name)
    if not profile.batches:
        raise table.error("profile", "must have at least one batch")
    first = profile.batches[0]
    scale = table.number("guidance_scale", GUIDANCE_SCALE if first.guided else 1.0, maximum=100.0)
    model = EmulatedModel(
        name=name,
        profile=profile,
        width_px=first.width_px,
        height_px=first.height_px,
        steps=table.whole("steps", profile.step_count, minimum=1, maximum=1000),
        guidance_scale=scale,
        load=_spread(table, "load_s", "load_variation"),
        swap=_spread(table, "swap_s", "load_variation") if "swap_s" in table.fields else None,
        recording=table.path("recording", None),
        quality=table.number("quality", minimum=-1.0, maximum=1.0) if "quality" in table.fields else None,
        quality_spread=table.number("quality_spread", 0.0, maximum=1.0),
        # Above 1: refining a similar image may improve it (MoDM, 5.2).
        reuse_quality=table.number("reuse_quality", 1.0, maximum=2.0),
        steps_profile=table.path("steps_profile", None),
    )
    if profile.batch(first.width_px, first.height_px, guided=model.guided, batch_size=first.batch_size) is None:
        raise table.error("guidance_scale", f"must be one that the profile measured, got {scale:g}")
    return model


def _profile(table: TomlTable, name: str) -> ModelProfile:
    path, latencies = table.path("profile", None), table.table("latency_s")
    if (path is None) == (latencies is None):
        raise table.error("profile", "must be given, or else latency_s with seconds of a whole run by batch size")
    if latencies is not None:
        return _published(table, name, latencies)
    assert path is not None
    try:
        return costs_from_json(path.read_text())
    except (OSError, UnicodeDecodeError, PentimentoError) as error:
        raise table.error("profile", f"{path} cannot be read: {error}") from None


def _published(table: TomlTable, name: str, latencies: TomlTable) -> ModelProfile:
    """A profile from seconds of whole runs; `variation` is their standard deviation as a share of the mean."""
    size = (table.whole("width_px", 512, minimum=8), table.whole("height_px", 512, minimum=8))
    steps, variation = table.whole("steps", minimum=1, maximum=1000), table.number("variation", 0.0)
    guided = table.number("guidance_scale", GUIDANCE_SCALE) > 1.0
    seconds = {
        _batch_size(latencies, field): latencies.number(field, minimum=MIN_COST_S, maximum=MAX_COST_S) / steps
        for field in latencies.fields
    }
    once = SizeProfile(*size, NOTHING, steady(table.number("finish_s", 0.0), variation), NOTHING)
    batches = tuple(
        # The steps of a run are drawn one by one, so each has to scatter more for the run to scatter so much.
        BatchProfile(*size, guided, batch, (steady(seconds[batch], variation * steps**0.5),))
        for batch in sorted(seconds)
    )
    return ModelProfile(name, f"published:{name}", "emulated", "", 1, "off", steps, (once,), batches)


def _batch_size(table: TomlTable, field: str) -> int:
    if not (field.isascii() and field.isdigit() and 1 <= int(field) <= 64):
        raise table.error(field, "must be a batch size of 1 to 64")
    return int(field)


def _devices(table: TomlTable, models: tuple[EmulatedModel, ...]) -> EmulatedDevices:
    known = {model.name: model for model in models}
    devices = EmulatedDevices(
        name=table.text("name"),
        count=table.whole("count", 1, minimum=1, maximum=MAX_DEVICES),
        models=table.texts("models"),
        speed=table.number("speed", 1.0, minimum=0.001, maximum=1000.0),
        memory_bytes=table.whole("memory_bytes", minimum=1) if "memory_bytes" in table.fields else None,
        max_batch=table.whole("max_batch", 8, minimum=1, maximum=64),
        speed_changes=SpeedChanges(
            table.number("speed_variation", 0.0, maximum=10.0),
            table.number("speed_period_s", SpeedChanges.period_s, minimum=0.01),
        ),
    )
    if not devices.models or set(devices.models) - known.keys():
        raise table.error("models", f"must be some of {', '.join(known) or 'none'}, got {list(devices.models)}")
    if not devices.name.replace("-", "").isalnum() or not devices.name.isascii() or len(devices.name) > 16:
        raise table.error("name", f"must be 1 to 16 letters, digits and -, got {devices.name!r}")
    for name in devices.models:
        if largest_batch(known[name], devices) < 1:
            raise table.error("memory_bytes", f"must be enough for {name}, got {devices.memory_bytes}")
    return devices


def largest_batch(model: EmulatedModel, devices: EmulatedDevices) -> int:
    """Return how many requests of the model's own size share a step on such devices, limited by measurements and
    memory; 0 if not even one fits."""
    fitting = [batch.batch_size for batch in measured_batches(model) if _fits(batch, devices.memory_bytes)]
    return min(max(fitting, default=0), devices.max_batch)


def measured_batches(model: EmulatedModel) -> tuple[BatchProfile, ...]:
    """Return the measured batches of the model's own size and guidance, by batch size."""
    wanted = (model.width_px, model.height_px, model.guided)
    found = (batch for batch in model.profile.batches if (batch.width_px, batch.height_px, batch.guided) == wanted)
    return tuple(sorted(found, key=lambda batch: batch.batch_size))


def _fits(batch: BatchProfile, memory_bytes: int | None) -> bool:
    return memory_bytes is None or batch.peak_memory_bytes is None or batch.peak_memory_bytes <= memory_bytes


def _cascade(table: TomlTable, known: list[str]) -> tuple[str, ...]:
    cascade = table.texts("cascade", ())
    if set(cascade) - set(known) or len(set(cascade)) < len(cascade):
        raise table.error("cascade", f"must be some of {', '.join(known)}, each once, got {list(cascade)}")
    return cascade


def _discriminator(table: TomlTable | None) -> EmulatedDiscriminator | None:
    if table is None:
        return None
    return EmulatedDiscriminator(_spread(table, "score_s", "variation"), table.whole("count", 1, minimum=1, maximum=64))


def _spread(table: TomlTable, mean: str, variation: str) -> Cost:
    return steady(table.number(mean, 0.0), table.number(variation, 0.0))


def _deferral(table: TomlTable | None) -> tuple[tuple[float, float], ...]:
    if table is None:
        return EmulatedFleet.deferral
    thresholds, shares = table.numbers("thresholds"), table.numbers("shares")
    if len(thresholds) != len(shares) or len(thresholds) < 2:
        raise table.error("shares", f"must be two or more, one for each threshold, got {len(shares)}")
    for field, values in (("thresholds", thresholds), ("shares", shares)):
        if list(values) != sorted(values) or values[-1] > 1.0:
            raise table.error(field, "must ascend within 0 and 1")
    return tuple(zip(thresholds, shares, strict=True))


def _reuse(table: TomlTable | None) -> EmulatedReuse | None:
    if table is None:
        return None
    reuse = EmulatedReuse(read_thresholds(table.table("latents")), read_thresholds(table.table("images")))
    if reuse == EmulatedReuse():
        raise table.error("images", "must be given, or latents")
    return reuse


def _check_names(table: TomlTable, field: str, names: list[str]) -> None:
    if not names:
        raise table.error(field, "must have at least one entry")
    if len(set(names)) < len(names):
        raise table.error(field, f"must have names of their own, got {', '.join(names)}")


def _one_of(table: TomlTable, field: str, allowed: list[str], default: str) -> str:
    value = table.text(field, default)
    if value not in allowed:
        raise table.error(field, f"must be one of {', '.join(allowed)}, got {value!r}")
    return value


def served_profile(fleet: EmulatedFleet, model: EmulatedModel) -> ModelProfile:
    """Return the profile that a frontdoor expects of the model: under the served name, averaged over the fleet's
    devices that may hold it, up to their largest batch."""
    holding = [devices for devices in fleet.devices if model.name in devices.models]
    count = sum(devices.count for devices in holding)
    slowness = sum(devices.count / devices.speed for devices in holding) / count if count else 1.0
    most = max((largest_batch(model, devices) for devices in holding), default=1)
    measured = measured_batches(model)
    kept = [batch for batch in measured if batch.batch_size <= most] or list(measured[:1])
    batches = tuple(replace(batch, steps=tuple(slower(step, slowness) for step in batch.steps)) for batch in kept)
    return replace(model.profile, model=model.name, batches=batches)


@dataclass(frozen=True)
class ImageLabel:
    """The label inside an emulated image: its model, the discriminator's confidence in it, its quality if known, its
    first step, and its prompt."""

    model: str
    confidence: float
    quality: float | None = None
    start_step: int = 0
    prompt: str = ""


_KEYWORD = "pentimento-emulated"


def labelled(png: bytes, label: ImageLabel) -> bytes:
    """Return the image with its label inside. Raises ValueError if it is no PNG."""
    return with_text(png, _KEYWORD, json.dumps(asdict(label)))


def label_of(png: bytes) -> ImageLabel | None:
    """Return the label of an image; None if no emulated device made it."""
    text = text_of(png, _KEYWORD)
    if text is None:
        return None
    try:
        label = ImageLabel(**json.loads(text))
        return label if 0.0 <= label.confidence <= 1.0 else None
    except (ValueError, TypeError):
        return None

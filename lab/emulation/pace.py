"""Read a pace: the description of a paced device's model and the times of its compute, a TOML file.

    name = "sdxl"
    family = "stable_diffusion_xl"
    steps = 50
    guidance_scale = 1.0                          # default of requests
    width_px = 1024
    height_px = 1024
    latent_channels = 4
    px_per_latent = 8
    text_tokens = 77
    text_width = 2048
    pooled_width = 1280                           # 0: the family has no pooled text
    block_channels = [320, 640, 1280]             # of the UNet: they decide the residuals' shapes
    layers_per_block = 2
    encode_ms = { 1 = 13.6, 2 = 27.2 }            # a pass by its rows: encoder and mid block
    decode_ms = { 1 = 16.6, 2 = 33.2 }            # the decoder, which waits for residuals
    picture_ms = 30.0                             # a latent to pixels
    patch_ms = 120.0                              # LoRAs into the weights, or out of them
    beside_share = 0.2                            # added to a pass with LoRAs applied per row
    [[controlnets]]
    name = "canny"
    step_ms = { 1 = 13.6, 2 = 27.2 }
    load_s = 1.5
    memory_bytes = 2500000000
    [[loras]]
    name = "papercut"
    load_s = 0.3
    memory_bytes = 358000000                      # of the memory for LoRAs; 1 by default
    latest_start_fraction = 0.2                   # of the schedule that may run without it

A paced device is a real process with real streams over compute that sleeps for these times. It ignores prompts and
weights. The paced worker, the paced ControlNet service and the benchmarks read the file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from lab.files.toml_document import TomlTable, read_toml
from pentimento.profiles.costs import for_every_batch, steady

MAX_ROWS = 128
_FAMILIES = ("stable_diffusion", "stable_diffusion_xl")

Dims = tuple[int, ...]


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a pass, at index rows - 1, up to the profiled number of rows."""

    seconds: tuple[float, ...]

    def of(self, row_count: int) -> float:
        """Return the seconds of a pass of `rows` rows; beyond the profiled ones in proportion to the largest."""
        known = len(self.seconds)
        return self.seconds[min(row_count, known) - 1] * max(row_count / known, 1.0)


@dataclass(frozen=True)
class ControlNetPace:
    """A ControlNet: its passes, the seconds of loading it, and what it takes on the device."""

    name: str
    step: PassTimes
    load_s: float
    memory_bytes: int


@dataclass(frozen=True)
class LoraPace:
    """A LoRA: the seconds of loading it, the share of the schedule that may run without it, and what it takes of the
    memory for LoRAs."""

    name: str
    load_s: float
    latest_start_fraction: float
    memory_bytes: int = 1


@dataclass(frozen=True)
class DevicePace:
    """A base model with its ControlNets and LoRAs. Patching LoRAs into the weights takes `patch_s`; applying them per
    row makes a pass longer by `beside_share`. The module's docstring shows the file. Sizes in pixels;
    `block_channels` from shallow to deep."""

    name: str
    family: str
    steps: int
    guidance_scale: float
    width_px: int
    height_px: int
    latent_channels: int
    px_per_latent: int
    text_tokens: int
    text_width: int
    pooled_width: int
    block_channels: tuple[int, ...]
    layers_per_block: int
    encode: PassTimes
    decode: PassTimes
    picture_s: float
    controlnets: tuple[ControlNetPace, ...]
    patch_s: float = 0.0
    loras: tuple[LoraPace, ...] = ()
    beside_share: float = 0.0

    @property
    def size_multiple_px(self) -> int:
        """Return the number that image sides are multiples of."""
        return self.px_per_latent << (len(self.block_channels) - 1)

    def latent_dims(self, width_px: int, height_px: int) -> Dims:
        """Return (channels, height, width) of an image's latent."""
        return (self.latent_channels, height_px // self.px_per_latent, width_px // self.px_per_latent)

    def residual_dims(self, row_count: int, height: int, width: int) -> tuple[tuple[Dims, ...], Dims]:
        """Return the dims of a UNet ControlNet's residuals for latents of that size: of its down blocks, shallow to
        deep, and of its mid block."""
        down = [(row_count, self.block_channels[0], height, width)]
        for level, channels in enumerate(self.block_channels):
            down += [(row_count, channels, height, width)] * self.layers_per_block
            if level < len(self.block_channels) - 1:
                height, width = -(-height // 2), -(-width // 2)
                down.append((row_count, channels, height, width))
        return tuple(down), (row_count, self.block_channels[-1], height, width)


def read_pace(path: Path) -> DevicePace:
    """Return what a file says. Raises NotFound without it, InvalidArgument that names file, line, field and limit."""
    table = read_toml(path)
    pace = DevicePace(
        name=table.text("name"),
        family=_family(table),
        steps=table.whole("steps", minimum=1, maximum=1000),
        guidance_scale=table.number("guidance_scale", 1.0, maximum=100.0),
        width_px=table.whole("width_px", minimum=8, maximum=8192),
        height_px=table.whole("height_px", minimum=8, maximum=8192),
        latent_channels=table.whole("latent_channels", 4, minimum=1, maximum=64),
        px_per_latent=table.whole("px_per_latent", 8, minimum=1, maximum=64),
        text_tokens=table.whole("text_tokens", 77, minimum=1, maximum=1024),
        text_width=table.whole("text_width", minimum=1, maximum=8192),
        pooled_width=table.whole("pooled_width", 0, maximum=8192),
        block_channels=_channels(table),
        layers_per_block=table.whole("layers_per_block", 2, minimum=1, maximum=16),
        encode=_pass_times(table, "encode_ms"),
        decode=_pass_times(table, "decode_ms"),
        picture_s=table.number("picture_ms", 0.0) / 1e3,
        controlnets=tuple(_controlnet(entry) for entry in table.tables("controlnets")),
        patch_s=table.number("patch_ms", 0.0) / 1e3,
        loras=tuple(_lora(entry) for entry in table.tables("loras")),
        beside_share=table.number("beside_share", 0.0, maximum=10.0),
    )
    for field, named in (("controlnets", pace.controlnets), ("loras", pace.loras)):
        names = [one.name for one in named]
        if len(set(names)) < len(names):
            raise table.error(field, f"must have names of their own, got {', '.join(names)}")
    table.close()
    return pace


def write_pace(path: Path, pace: DevicePace) -> None:
    """Write a file that `read_pace` reads as the pace."""
    lines = [f"{key} = {value}" for key, value in _fields(pace).items()]
    for controlnet in pace.controlnets:
        lines += ["[[controlnets]]", f'name = "{controlnet.name}"', f"step_ms = {_milliseconds(controlnet.step)}"]
        lines += [f"load_s = {controlnet.load_s}", f"memory_bytes = {controlnet.memory_bytes}"]
    for lora in pace.loras:
        lines += ["[[loras]]", f'name = "{lora.name}"', f"load_s = {lora.load_s}"]
        lines += [f"latest_start_fraction = {lora.latest_start_fraction}", f"memory_bytes = {lora.memory_bytes}"]
    path.write_text("\n".join(lines) + "\n")


def slowed(pace: DevicePace, factor: float) -> DevicePace:
    """Return a device that takes `factor` times as long for everything."""
    return replace(
        pace,
        encode=_slowed(pace.encode, factor),
        decode=_slowed(pace.decode, factor),
        picture_s=pace.picture_s * factor,
        patch_s=pace.patch_s * factor,
        controlnets=tuple(
            replace(one, step=_slowed(one.step, factor), load_s=one.load_s * factor) for one in pace.controlnets
        ),
        loras=tuple(replace(one, load_s=one.load_s * factor) for one in pace.loras),
    )


def _slowed(times: PassTimes, factor: float) -> PassTimes:
    return PassTimes(tuple(seconds * factor for seconds in times.seconds))


def _fields(pace: DevicePace) -> dict[str, object]:
    return {
        "name": f'"{pace.name}"',
        "family": f'"{pace.family}"',
        "steps": pace.steps,
        "guidance_scale": pace.guidance_scale,
        "width_px": pace.width_px,
        "height_px": pace.height_px,
        "latent_channels": pace.latent_channels,
        "px_per_latent": pace.px_per_latent,
        "text_tokens": pace.text_tokens,
        "text_width": pace.text_width,
        "pooled_width": pace.pooled_width,
        "block_channels": list(pace.block_channels),
        "layers_per_block": pace.layers_per_block,
        "encode_ms": _milliseconds(pace.encode),
        "decode_ms": _milliseconds(pace.decode),
        "picture_ms": f"{pace.picture_s * 1e3:.9g}",
        "patch_ms": f"{pace.patch_s * 1e3:.9g}",
        "beside_share": pace.beside_share,
    }


def _milliseconds(times: PassTimes) -> str:
    rows = (f"{rows} = {seconds * 1e3:.9g}" for rows, seconds in enumerate(times.seconds, 1))
    return "{ " + ", ".join(rows) + " }"


def _family(table: TomlTable) -> str:
    family = table.text("family")
    if family not in _FAMILIES:
        raise table.error("family", f"must be one of {', '.join(_FAMILIES)}, got {family[:80]!r}")
    return family


def _channels(table: TomlTable) -> tuple[int, ...]:
    values = table.numbers("block_channels", minimum=1.0)
    if not 1 <= len(values) <= 8 or not all(value.is_integer() and value <= 65536 for value in values):
        raise table.error("block_channels", f"must be 1 to 8 whole numbers, got {list(values)[:8]}")
    return tuple(int(value) for value in values)


def _controlnet(table: TomlTable) -> ControlNetPace:
    return ControlNetPace(
        name=table.text("name"),
        step=_pass_times(table, "step_ms"),
        load_s=table.number("load_s", 0.0),
        memory_bytes=table.whole("memory_bytes", 1, minimum=1),
    )


def _lora(entry: TomlTable) -> LoraPace:
    return LoraPace(
        name=entry.text("name"),
        load_s=entry.number("load_s", 0.0),
        latest_start_fraction=entry.number("latest_start_fraction", 0.0, maximum=1.0),
        memory_bytes=entry.whole("memory_bytes", 1, minimum=1),
    )


def _pass_times(table: TomlTable, field: str) -> PassTimes:
    inner = table.table(field)
    if inner is None or not inner.fields:
        raise table.error(field, "must be milliseconds of a pass by its rows")
    known = {_rows(inner, key): steady(inner.number(key) / 1e3) for key in inner.fields}
    return PassTimes(tuple(cost.mean_s for cost in for_every_batch(known)))


def _rows(table: TomlTable, field: str) -> int:
    if not (field.isascii() and field.isdigit() and 1 <= int(field) <= MAX_ROWS):
        raise table.error(field, f"must be 1 to {MAX_ROWS} rows")
    return int(field)

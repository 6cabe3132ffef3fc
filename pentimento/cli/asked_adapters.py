"""Parse LoRAs and ControlNets of the command line: `--lora NAME[:SCALE]`,
`--controlnet NAME:FILE[:SCALE[:START-END]]`."""

from pathlib import Path

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.image_request import AskedControlNet, AskedLora

LORA_FORM = "NAME[:SCALE]"
CONTROLNET_FORM = "NAME:FILE[:SCALE[:START-END]]"
# The largest input image; servers accept less.
MAX_FILE_BYTES = 64 << 20
_LIMIT_PARTS = 2


def lora_of(text: str) -> AskedLora:
    """Parse `NAME[:SCALE]`; the server validates the values."""
    name, colon, scale = text.partition(":")
    return AskedLora(name, _number("lora", LORA_FORM, scale, text) if colon else None)


def controlnet_of(text: str) -> AskedControlNet:
    """Parse `NAME:FILE[:SCALE[:START-END]]` and read the file; its name may contain colons. InvalidArgument names the
    option and its form."""
    name, _, rest = text.partition(":")
    file, limits = _split(rest, text)
    scale = _number("controlnet", CONTROLNET_FORM, limits[0], text) if limits else None
    start, end = _shares(limits[1], text) if len(limits) == _LIMIT_PARTS else (None, None)
    return AskedControlNet(name, read_image("controlnet", file), scale, start, end)


def _split(rest: str, text: str) -> tuple[Path, list[str]]:
    """Split the text into an existing file and the rest."""
    parts = rest.split(":")
    for count in range(len(parts), max(len(parts) - _LIMIT_PARTS, 1) - 1, -1):
        file = ":".join(parts[:count])
        if file and "\0" not in file and Path(file).is_file():
            return Path(file), parts[count:]
    if not rest:
        raise InvalidArgument.of("controlnet", f"must be {CONTROLNET_FORM}, got {text!r}")
    raise InvalidArgument.of("controlnet", f"must be {CONTROLNET_FORM} with an existing file, got {text!r}")


def _shares(text: str, whole: str) -> tuple[float, float]:
    start, dash, end = text.partition("-")
    if not dash:
        raise InvalidArgument.of("controlnet", f"must be {CONTROLNET_FORM}, got {whole!r}")
    return _number("controlnet", CONTROLNET_FORM, start, whole), _number("controlnet", CONTROLNET_FORM, end, whole)


def _number(option: str, form: str, text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument.of(option, f"must be {form}, got {whole!r}") from None


def read_image(option: str, file: Path) -> bytes:
    """Return the bytes of an input image. InvalidArgument names the option of a too large file."""
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArgument.of(option, f"must name a file of at most {MAX_FILE_BYTES} bytes, got {file}")
    return data

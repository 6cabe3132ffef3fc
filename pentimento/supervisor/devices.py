"""Place the processes of a suite on GPUs.

A placed process sees only its own GPU (`CUDA_VISIBLE_DEVICES`), which is then the current device for streams, graphs
and handles of CUDA's inter-process communication. Two processes on one GPU recognise this by its UUID.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pentimento.domain.errors import InvalidArgument
from pentimento.supervisor.suite_settings import ProcessSpec

CPU = "cpu"
# The most that services take as --claims-per-device.
MOST_SHARERS = 64
VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
_NUMBER = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)


def read_devices(field: str, text: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs of a list such as `0,1,2,3`: numbers as in nvidia-smi, or UUIDs. If the caller itself sees only
    some GPUs, numbers count those. Raises InvalidArgument."""
    given = tuple(part.strip() for part in text.split(","))
    if not all(_NUMBER.fullmatch(one) or _UUID.fullmatch(one) for one in given) or len(set(given)) < len(given):
        limit = "must be numbers or UUIDs (GPU-…) of GPUs, each once, with commas between them"
        raise InvalidArgument.of(field, f"{limit}, got {text[:120]!r}")
    if VISIBLE not in environ:
        return given
    seen = [one.strip() for one in environ[VISIBLE].split(",") if one.strip()]
    if beyond := [one for one in given if one.isdecimal() and int(one) >= len(seen)]:
        limit = f"must be below {len(seen)}, the number of GPUs in {VISIBLE}"
        raise InvalidArgument.of(field, f"{limit}, got {', '.join(beyond)}")
    return tuple(seen[int(one)] if one.isdecimal() else one for one in given)


def read_places(
    texts: Iterable[str], services: Sequence[str], environ: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of each service that `SERVICE=GPU,…` or `SERVICE=cpu` places; none for the CPU. Raises
    InvalidArgument."""
    places: dict[str, tuple[str, ...]] = {}
    for text in texts:
        service, _, devices = text.partition("=")
        if service not in services or not devices or service in places:
            limit = f"must be SERVICE=GPU,… or SERVICE=cpu, once each, of {', '.join(services)}"
            raise InvalidArgument.of("place", f"{limit}; got {text[:120]!r}")
        places[service] = () if devices == CPU else read_devices("place", devices, environ)
    return places


def placed(spec: ProcessSpec, others: Iterable[ProcessSpec]) -> ProcessSpec:
    """Return the process on the allowed GPU with the fewest processes of its kind, then the fewest of any kind; the
    first one of equals."""
    if not spec.devices:
        return spec
    there = [(other.device, other.module == spec.module) for other in others]

    def load(device: str) -> tuple[int, int]:
        return there.count((device, True)), sum(device == other for other, _ in there)

    return replace(spec, device=min(spec.devices, key=load))


def most_sharers(lists: Iterable[tuple[str, ...] | None]) -> int:
    """Return the most processes of one kind on a GPU when each takes the GPU of its list with the fewest; at most
    MOST_SHARERS. A list of None is the first GPU; an empty one is the CPU."""
    there = Counter[str]()
    for devices in lists:
        if devices != ():
            there[min(devices or ("",), key=there.__getitem__)] += 1
    return min(max(there.values(), default=1), MOST_SHARERS)


def environment_of(spec: ProcessSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that show the process only its GPU; none for a process without a GPU."""
    if not spec.device:
        return {}
    # Numbers follow nvidia-smi's order unless the caller has set another one.
    order = {} if {VISIBLE, ORDER} & environ.keys() else {ORDER: "PCI_BUS_ID"}
    return {VISIBLE: spec.device, **order}

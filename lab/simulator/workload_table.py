"""The workload of a scenario file: built from arguments, or read from a file."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from lab.files.toml_document import TomlTable
from lab.simulator.synthetic_log import synthetic_log
from lab.workloads import Content, Segment, SloClass, Workload, fluctuating, from_trace, load_workload, poisson
from lab.workloads.builders import MODM_FLUCTUATION
from lab.workloads.readers import read_azure_times, read_embeddings, read_mooncake
from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import read_prompts

_DEADLINE_S = 60.0


def read_workload(table: TomlTable, rng: np.random.Generator) -> Workload:
    """InvalidArgument that names file, line, field and limit. The table is read, not closed."""
    kind = table.text("kind")
    if kind not in _KINDS:
        raise table.error("kind", f"must be one of {', '.join(_KINDS)}, got {kind!r}")
    try:
        workload = _KINDS[kind](table, rng)
    except InvalidArgument as error:
        raise _placed(table, error) from None
    count = table.whole("first", 0)
    return workload.first(count) if count else workload


def existing(table: TomlTable, field: str, *default: None) -> Path | None:
    """A path that something lies at, or InvalidArgument; None where there is no field and that is the default."""
    path = table.path(field, *default)
    if path is not None and not path.exists():
        raise table.error(field, f"must be there, but {path} is not")
    return path


def _placed(table: TomlTable, error: InvalidArgument) -> InvalidArgument:
    """Errors of builders know their field, but not the file that gave it."""
    violation = error.violations[0]
    known = violation.field in table.fields
    return table.error(violation.field, violation.description) if known else error


def _poisson(table: TomlTable, rng: np.random.Generator) -> Workload:
    rate, duration_s = table.number("rate", minimum=1e-6), table.number("duration_s", minimum=1e-3)
    return poisson(rate, duration_s, rng, _content(table, rng))


def _fluctuating(table: TomlTable, rng: np.random.Generator) -> Workload:
    """`rates` a second, each for `segment_s`; MoDM's without them."""
    rates = table.numbers("rates", ())
    segment_s = table.number("segment_s", 1200.0, minimum=1e-3)
    segments = tuple(Segment(segment_s, rate) for rate in rates) or MODM_FLUCTUATION
    return fluctuating(rng, _content(table, rng), segments)


def _trace(table: TomlTable, rng: np.random.Generator) -> Workload:
    path = existing(table, "path")
    assert path is not None
    form = table.text("format", "azure")
    if form == "azure":
        times = read_azure_times(path)
    elif form == "mooncake":
        times = np.asarray([request.at_s for request in read_mooncake(path)])
    else:
        raise table.error("format", f"must be azure or mooncake, got {form!r}")
    scale, compress = table.number("scale", 1.0, minimum=1e-6), table.number("compress", 1.0, minimum=1e-6)
    return from_trace(times, rng, _content(table, rng), scale=scale, compress=compress, source=path.name)


def _file(table: TomlTable, rng: np.random.Generator) -> Workload:
    path = existing(table, "path")
    assert path is not None
    return load_workload(path)


_KINDS: Mapping[str, Callable[[TomlTable, np.random.Generator], Workload]] = {
    "poisson": _poisson,
    "fluctuating": _fluctuating,
    "trace": _trace,
    "file": _file,
}


def _content(table: TomlTable, rng: np.random.Generator) -> Content:
    """Return the content of requests. `prompts` and `embeddings` are files with the same number of rows;
    `synthetic_prompts` is the number of made-up embeddings. Requests begin with prompt `first_prompt`; earlier ones
    may warm a cache."""
    prompts_path, embeddings_path = existing(table, "prompts", None), existing(table, "embeddings", None)
    prompts = read_prompts(prompts_path) if prompts_path is not None else ("",)
    embeddings = None
    if embeddings_path is not None:
        embeddings = read_embeddings(embeddings_path, len(prompts))
    elif count := table.whole("synthetic_prompts", 0, maximum=1_000_000):
        prompts, embeddings = ("",) * count, synthetic_log(count, rng)
    return Content(
        prompts=prompts,
        embeddings=embeddings,
        slo_classes=_slo_classes(table),
        tenants=_tenants(table.table("tenants")),
        steps=table.whole("steps", 50, minimum=1, maximum=1000),
        model=table.text("model", ""),
        first_prompt=table.whole("first_prompt", 0),
        sources=(prompts_path.name,) if prompts_path is not None else (),
    )


def _slo_classes(table: TomlTable) -> tuple[SloClass, ...]:
    """Either one `deadline_s`, or an array of classes."""
    given = tuple(
        SloClass(entry.text("name"), entry.number("deadline_s", minimum=1e-3), entry.number("share", 1.0))
        for entry in table.tables("slo_classes")
    )
    deadline_s = table.number("deadline_s", _DEADLINE_S, minimum=1e-3)
    return given or (SloClass("standard", deadline_s),)


def _tenants(table: TomlTable | None) -> Mapping[str, float]:
    """Shares by name."""
    if table is None:
        return {"default": 1.0}
    return {name: table.number(name) for name in table.fields}

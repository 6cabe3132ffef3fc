"""Workload files: one JSON object per line, the first one the header; embeddings in a .npy file of float32.

    {"format": 1, "name": …, "provenance": {…}, "arrivals": 2, "embeddings": "NAME.npy" or null}
    {"at_s": 0.5, "tenant": "default", "prompt": …, "slo_class": "standard", "deadline_s": 60.0, "steps": 50, "seed": 7}

Fields at their default are left out. A name that ends in .gz is compressed.
"""

from pathlib import Path

import numpy as np

from lab.workloads.arrival import Arrival, Embeddings, Workload
from lab.workloads.line_files import check_count, open_lines, save_lines, sparse
from pentimento.domain.errors import InvalidArgument
from pentimento.files.lines import Line

FORMAT = 1
_sparse = sparse(Arrival)


def save_workload(workload: Workload, path: Path) -> None:
    """Write `path` and its embeddings, each whole or not at all."""
    array = path.with_name(_stem(path) + ".npy")
    if workload.embeddings is not None:
        fresh = array.with_name(array.name + ".tmp")
        with fresh.open("wb") as file:
            np.save(file, workload.embeddings.astype(np.float32), allow_pickle=False)
        fresh.replace(array)
    header = {
        "format": FORMAT,
        "name": workload.name,
        "provenance": dict(workload.provenance),
        "arrivals": len(workload.arrivals),
        "embeddings": None if workload.embeddings is None else array.name,
    }
    save_lines(path, header, map(_sparse, workload.arrivals))


def load_workload(path: Path) -> Workload:
    """Return the workload of a file. Raises NotFound, or InvalidArgument that names file, line, field and limit."""
    header, lines = open_lines(path, FORMAT)
    embeddings = _load_embeddings(path.parent / header.text("embeddings")) if header.has("embeddings") else None
    rows = 0 if embeddings is None else len(embeddings)
    arrivals: list[Arrival] = []
    for line in lines:
        arrivals.append(_arrival(line, arrivals[-1].at_s if arrivals else 0.0, rows))
    check_count(header, "arrivals", len(arrivals))
    return Workload(header.text("name"), tuple(arrivals), header.objects("provenance"), embeddings)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def _arrival(line: Line, not_before_s: float, rows: int) -> Arrival:
    at_s, deadline_s = line.number("at_s"), line.number("deadline_s")
    if at_s < not_before_s:
        raise line.wrong("at_s", f"must not be before the line ahead ({not_before_s:g}), got {at_s:g}")
    if deadline_s <= 0:
        raise line.wrong("deadline_s", f"must be above 0, got {deadline_s:g}")
    row = line.count("embedding_row") if line.has("embedding_row") else -1
    if row >= rows:
        raise line.wrong("embedding_row", f"must be below the number of embeddings, {rows}, got {row}")
    return Arrival(
        at_s=at_s,
        tenant=line.text("tenant"),
        prompt=line.text("prompt"),
        slo_class=line.text("slo_class"),
        deadline_s=deadline_s,
        steps=line.count("steps", 1),
        seed=line.count("seed"),
        model=line.text("model") if line.has("model") else "",
        loras=line.texts("loras") if line.has("loras") else (),
        controlnets=line.texts("controlnets") if line.has("controlnets") else (),
        embedding_row=row,
    )


def _load_embeddings(path: Path) -> Embeddings:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InvalidArgument.of(str(path), f"must be a .npy file of numbers: {error}") from None
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.floating) or not np.isfinite(found).all():
        raise InvalidArgument.of(
            str(path), f"must be finite floats of (prompts, width), got {found.dtype} {found.shape}"
        )
    return np.asarray(found, np.float32)

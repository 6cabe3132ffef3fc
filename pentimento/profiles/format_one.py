"""Read files of format 1: one form for each kind of profile, without sums, so that no run continues them.

The next version reads only format 2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pentimento.domain.errors import InvalidArgument

Document = dict[str, Any]


def upgraded(document: Document, where: str) -> list[Document]:
    """Return the profiles of a document of format 1 in format 2. Raises InvalidArgument for another form."""
    try:
        return list(_upgraded(document))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument.of(where, f"must be a whole profile of format 1: {error!r:.80}") from None


def _upgraded(document: Document) -> Iterator[Document]:
    if "bounds" in document:
        nets = [bound for bound in document["bounds"] if "controlnet_digest" in bound]
        yield from (_lora(bound) for bound in document["bounds"] if "controlnet_digest" not in bound)
        for digests in dict.fromkeys(map(_digests, nets)):
            yield _pipelining([bound for bound in nets if _digests(bound) == digests])
    elif "batches" in document:
        yield {"kind": "cost", **document}
    elif "light_digest" in document:
        yield _handover(document)
    elif "kind" in document:
        yield _reuse(document)
    else:
        yield _steps(document)


def _profile(kind: str, document: Document, **parts: Any) -> Document:
    asked = {name: document[name] for name in ("alpha", "rule", "quality") if name in document}
    source = {"prompts": "prompts", "build": "build_version", "at": "measured_at"}
    measured = {name: document[old] for name, old in source.items() if old in document}
    measured["figures"] = parts.pop("figures", {})
    return {"kind": kind, "asked": asked, "measured": measured, **parts}


def _taken(document: Document, *names: str) -> Document:
    return {name: document[name] for name in names if document.get(name) is not None}


def _reuse(document: Document) -> Document:
    names = {"reference": "reference_model", "reference_digest": "reference_model_digest"}
    of = _taken(document, "model", "model_digest", "encoder", "encoder_digest")
    conditions = _taken(document, "step_count", "model_step_count")
    rows = [
        {
            "at": {"skipped_steps": step["skipped_steps"]},
            "count": step["sample_count"],
            "allowed": _taken(step, "minimum", "lower_bound", "mean"),
        }
        for step in document["steps"]
    ]
    of |= {name: document[old] for name, old in names.items()}
    return _profile("reuse", document, of=of, conditions={**conditions, "start": document["kind"]}, rows=rows)


def _counted(row: Mapping[str, Any], at: Document, value: float, figures: Document) -> Document:
    allowed = {rule: value for rule in row.get("allowed", [])}
    kept = row["kept_count"]
    return {"at": at, "count": row["picture_count"], "kept": kept, "allowed": allowed, "figures": figures}


def _steps(document: Document) -> Document:
    conditions = _taken(document, "step_count", "scheduler", "guidance_scale")
    rows = [
        _counted(
            row,
            {**_taken(row, "first_step", "taken_count"), **_changed(row)},
            row["first_step"] + row["taken_count"],
            {"share": row["mean_share"]},
        )
        for row in document["rows"]
    ]
    return _profile(
        "steps",
        document,
        of=_taken(document, "model", "model_digest", "encoder", "encoder_digest", "adapters"),
        conditions={**conditions, "patch_step": document.get("lora_patch_step", 0)},
        rows=rows,
    )


def _changed(row: Document) -> Document:
    defaults = {"resume_step": 0, "least_similarity": -1.0, "spacing": 1.0}
    return {name: row[name] for name, default in defaults.items() if row.get(name, default) != default}


def _handover(document: Document) -> Document:
    names = {"model": "heavy", "model_digest": "heavy_digest", "reference": "light", "reference_digest": "light_digest"}
    of = {name: document[old] for name, old in names.items()} | _taken(document, "encoder", "encoder_digest")
    rows = [
        _counted(row, {"reuse_share": row["reuse_share"]}, row["reuse_share"], {"share": row["mean_share"]})
        for row in document["rows"]
    ]
    figures = {"light_share": document["light_share"]}
    conditions = _taken(document, "step_count", "guidance_scale")
    return _profile("handover", document, of=of, conditions=conditions, rows=rows, figures=figures)


def _lora(bound: Document) -> Document:
    """Return the profile of a bound. Without rows, as if written by hand, it allows its share of a schedule."""
    step_count, fraction = bound.get("step_count") or 1000, bound["latest_start_fraction"]
    rule = bound.get("rule") or "lower_bound"
    names = ("mean_cosine", "lowest_cosine", "mean_strength", "lowest_strength", "mean_alike")
    rows = [
        _counted(row, {"steps": row["steps"]}, row["steps"], _taken(row, *names)) for row in bound.get("measured", [])
    ]
    if not rows and fraction:
        rows = [{"at": {"steps": fraction * step_count}, "allowed": {rule: fraction * step_count}}]
    lora = {"digest": bound["lora_digest"], "name": bound.get("lora", "")}
    return _profile(
        "lora",
        {**bound, "rule": rule},
        of={"model": bound.get("model", ""), "model_digest": bound["model_digest"], "adapters": [lora]},
        conditions={"step_count": step_count},
        rows=rows,
        figures={"alike_steps": bound.get("alike_steps", 0)},
    )


def _digests(bound: Document) -> tuple[str, str]:
    return bound["controlnet_digest"], bound["model_digest"]


def _pipelining(bounds: list[Document]) -> Document:
    """Return the profile of one ControlNet's bounds on one model, with a row for each number of steps."""
    digest, model_digest = _digests(bounds[0])
    return _profile(
        "pipelining",
        {},
        of={
            "model": "",
            "model_digest": model_digest,
            "adapters": [{"digest": digest, "name": bounds[0]["controlnet"], "kind": "controlnet"}],
        },
        conditions={"step_count": max(bound["step_count"] for bound in bounds)},
        rows=[{"at": _taken(bound, "step_count", "first_step")} for bound in bounds],
    )

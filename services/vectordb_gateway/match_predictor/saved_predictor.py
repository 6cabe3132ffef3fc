"""A predictor in a file, so that a restarted gateway need not learn anew: arrays without pickle, bound to a cache."""

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pentimento.files.private_files import make_private_directory
from pentimento.policies.match_prediction import SearchOutcome
from pentimento.stores.ledger.cache_records import EncoderBinding
from services.vectordb_gateway.match_predictor.predictor import MatchPredictor, PoolModel
from services.vectordb_gateway.match_predictor.sign_codes import WORD_COUNT, CodeSet
from services.vectordb_gateway.match_predictor.support import Support

FORMAT_VERSION = 1
# What numpy and zipfile raise for damaged archives: for one, RuntimeError where a flipped bit says "encrypted".
_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    EOFError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


class UnusableFile(Exception):
    """A saved predictor that cannot be used, with the reason: train anew."""


def save_predictor(
    path: Path, cache_id: str, predictor: MatchPredictor, outcomes: tuple[SearchOutcome, ...] = ()
) -> None:
    """Write the predictor and what its gate remembers; the file is replaced in one step. Raises OSError."""
    arrays: dict[str, Any] = {
        "format_version": np.array(FORMAT_VERSION),
        "cache_id": np.array(cache_id),
        "encoder_digest": np.array(predictor.encoder.encoder_digest),
        "dimension_count": np.array(predictor.encoder.dimension_count),
        "last_sequence": np.array(predictor.last_sequence),
        "outcomes": np.array([(each.score, each.saved_share, each.weight) for each in outcomes]).reshape(-1, 3),
    }
    models = predictor.models()
    arrays["pools"] = np.array(list(models), dtype=np.str_)
    for number, model in enumerate(models.values()):
        arrays |= _arrays_of(f"{number}.", model)
    make_private_directory(path.parent)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_predictor(
    path: Path, cache_id: str, encoder: EncoderBinding
) -> tuple[MatchPredictor, tuple[SearchOutcome, ...]]:
    """Return what was saved for this cache and encoder. Raises UnusableFile for any other file, or a damaged one."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            _require(arrays, cache_id, encoder)
            predictor = MatchPredictor(encoder)
            pools = arrays["pools"].tolist()
            models = {pool: _model(arrays, f"{number}.") for number, pool in enumerate(pools)}
            predictor.restore(models, int(arrays["last_sequence"]))
            return predictor, tuple(SearchOutcome(*map(float, row)) for row in arrays["outcomes"])
    except _UNREADABLE as error:
        raise UnusableFile(f"cannot be read: {type(error).__name__}") from error


def _require(arrays: Any, cache_id: str, encoder: EncoderBinding) -> None:
    wanted = {
        "format_version": FORMAT_VERSION,
        "cache_id": cache_id,
        "encoder_digest": encoder.encoder_digest,
        "dimension_count": encoder.dimension_count,
    }
    for name, value in wanted.items():
        if arrays[name].item() != value:
            raise UnusableFile(f"is of another {name.replace('_', ' ')}")


def _arrays_of(prefix: str, model: PoolModel) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        f"{prefix}codes": model.entries.codes,
        f"{prefix}numbers": model.entries.numbers,
        f"{prefix}trained_count": np.array(model.trained_count),
        f"{prefix}has_support": np.array(model.support is not None),
    }
    if model.support is not None:
        arrays[f"{prefix}landmarks"] = model.support.landmarks
        arrays[f"{prefix}weights"] = model.support.weights
        arrays[f"{prefix}offset"] = np.array(model.support.offset)
    return arrays


def _model(arrays: Any, prefix: str) -> PoolModel:
    codes, numbers = arrays[f"{prefix}codes"], arrays[f"{prefix}numbers"]
    if codes.shape != (len(numbers), WORD_COUNT) or codes.dtype != np.uint64:
        raise ValueError("codes and numbers do not fit together")
    support = None
    if arrays[f"{prefix}has_support"].item():
        support = Support(arrays[f"{prefix}landmarks"], arrays[f"{prefix}weights"], float(arrays[f"{prefix}offset"]))
    return PoolModel(CodeSet(codes, numbers), support, int(arrays[f"{prefix}trained_count"]))

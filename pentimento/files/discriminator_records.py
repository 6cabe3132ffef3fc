"""Read the cascade and the measured value of a discriminator from its directory, without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason

RECORD_FILE, AUROC, CASCADE = "prompt_head.json", "auroc", "cascade"
_CHANCE = 0.5


def measured_auroc(path: Path, document: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the AUROC of a discriminator's record, the content of `path`, with the bounds of its interval; empty if it
    was not measured. Raises ValueError, naming file and key, for other values."""
    found = document.get(AUROC, [])
    if found == []:
        return ()
    if not isinstance(found, list) or len(found) != 3 or not all(map(_is_share, found)) or found[1] > found[2]:
        wanted = "must be a value and the bounds of its interval, within 0 and 1"
        raise ValueError(f"{path}: {AUROC} {wanted}, got {found!r:.80}")
    return tuple(map(float, found))


def why_uninformative(auroc: tuple[float, ...]) -> str:
    """Return why a discriminator with that measured AUROC carries no information; "" if it does, or if none was
    measured."""
    if not auroc or auroc[1] > _CHANCE:
        return ""
    value, low, high = auroc
    return f"its AUROC for 'as good' is {value:.2f} [{low:.2f}, {high:.2f}], and {_CHANCE} is chance"


def check_informative(directory: Path, cascade: str) -> None:
    """Raise FailedPrecondition DISCRIMINATOR_UNINFORMATIVE for a directory with a measured AUROC that is no better than
    chance."""
    try:
        auroc = measured_auroc(directory / RECORD_FILE, _record(directory))
    except ValueError:
        # The discriminator's process names the fault of the file.
        return
    why = why_uninformative(auroc)
    if why:
        message = f"the discriminator {directory} of {cascade} carries no information: {why}"
        raise FailedPrecondition(Reason.DISCRIMINATOR_UNINFORMATIVE, message)


def check_cascade(directory: Path, cascade: str) -> None:
    """Raise FailedPrecondition DISCRIMINATOR_OF_OTHER_CASCADE for a directory that was trained for another cascade,
    LIGHT>HEAVY. Older directories do not state theirs."""
    trained = _record(directory).get(CASCADE) or cascade
    if trained != cascade:
        message = f"the discriminator {directory} was trained for {trained!s:.200}, not for {cascade}"
        raise FailedPrecondition(Reason.DISCRIMINATOR_OF_OTHER_CASCADE, message)


def _record(directory: Path) -> Mapping[str, Any]:
    """Return the record in a directory; empty without one that can be read."""
    try:
        document = json.loads((directory / RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0

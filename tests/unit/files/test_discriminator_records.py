"""Decide whether a discriminator's record carries information."""

import json
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason
from pentimento.files.discriminator_records import RECORD_FILE, check_informative, measured_auroc


def written(folder: Path, **record: object) -> Path:
    (folder / RECORD_FILE).write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize("record", [{}, {"auroc": []}, {"auroc": [0.6, 0.51, 0.7]}, {"auroc": [0.8, 0.75, 0.85]}])
def test_check_informative_with_information_or_none_measured_passes(tmp_path: Path, record: dict[str, object]) -> None:
    check_informative(written(tmp_path, **record), "a>b")


@pytest.mark.parametrize("auroc", [[0.55, 0.5, 0.6], [0.4, 0.3, 0.45]])
def test_check_informative_with_chance_refuses_and_says_why(tmp_path: Path, auroc: list[float]) -> None:
    with pytest.raises(
        FailedPrecondition, match=r"of a>b carries no information: its AUROC .* 0\.5 is chance"
    ) as caught:
        check_informative(written(tmp_path, auroc=auroc), "a>b")

    assert caught.value.reason == Reason.DISCRIMINATOR_UNINFORMATIVE


@pytest.mark.parametrize("auroc", [0.7, [0.7], [0.7, 0.8, 0.6], [0.7, -0.1, 0.9], [0.7, "0.6", 0.9]])
def test_measured_auroc_with_other_values_names_file_and_key(auroc: object) -> None:
    with pytest.raises(ValueError, match=r"prompt_head\.json: auroc must be a value and the bounds"):
        measured_auroc(Path(RECORD_FILE), {"auroc": auroc})

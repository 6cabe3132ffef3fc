"""Decide whether a discriminator's record carries information."""

import json
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.reasons import Reason
from pentimento.files.discriminator_records import RECORD_FILE, check_cascade, check_informative, measured_auroc


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


@pytest.mark.parametrize("record", [{}, {"cascade": ""}, {"cascade": "a>b"}])
def test_check_cascade_with_its_own_or_none_stated_passes(tmp_path: Path, record: dict[str, object]) -> None:
    check_cascade(written(tmp_path, **record), "a>b")
    check_cascade(tmp_path / "without a record", "a>b")


def test_check_cascade_with_another_names_both(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="was trained for b>a, not for a>b") as caught:
        check_cascade(written(tmp_path, cascade="b>a"), "a>b")

    assert caught.value.reason == Reason.DISCRIMINATOR_OF_OTHER_CASCADE


@pytest.mark.parametrize("auroc", [0.7, [0.7], [0.7, 0.8, 0.6], [0.7, -0.1, 0.9], [0.7, "0.6", 0.9]])
def test_measured_auroc_with_other_values_names_file_and_key(auroc: object) -> None:
    with pytest.raises(ValueError, match=r"prompt_head\.json: auroc must be a value and the bounds"):
        measured_auroc(Path(RECORD_FILE), {"auroc": auroc})

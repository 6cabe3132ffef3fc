"""Test the attribute scorer: the share of its own prompt's attributes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import attribute_scorer
from benchmarks.attribute_scorer import AttributeScorer
from tests.support.images import a_png
from zoo.drawing.captions import UNSAID


class SeesClassOne:
    """See class 1 of every attribute in any image."""

    def __init__(self, *_: Any) -> None:
        pass

    def read(self, images: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        assert images.shape == (len(wanted), 3, 4, 4)
        return wanted == 1, torch.zeros(wanted.shape)


def test_attribute_scorer_returns_share_of_own_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "checkpoint.safetensors").touch()
    monkeypatch.setattr(attribute_scorer, "Examiner", SeesClassOne)
    judge = AttributeScorer(tmp_path, [(1, 1, UNSAID, UNSAID), (1, 2, 2, 1), (2, 2, 2, 2)])

    assert judge.qualities([a_png(4, 4)] * 4, [1, 0, 2, 1]) == [0.5, 1.0, 0.0, 0.5]

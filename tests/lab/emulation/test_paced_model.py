"""Test the seconds of a paced model's passes: slept for, and not read from a clock."""

import time
from dataclasses import replace

import pytest
import torch

from lab.emulation.pace import DevicePace, read_pace
from lab.emulation.paced_worker.model import PacedModel
from lab.runs.machine import ROOT
from pentimento.diffusion.families.model import Conditioning, DenoiserInput
from pentimento.diffusion.families.row_updates import PerSampleAdapters

PACE: DevicePace = replace(read_pace(ROOT / "scenarios" / "paces" / "sdxl-h800.toml"), beside_share=0.5)


def inputs(rows: int, *, beside: bool) -> DenoiserInput:
    conditioning = Conditioning(torch.zeros(rows, 1, 1), None)
    adapters = PerSampleAdapters({}) if beside else None
    return DenoiserInput(torch.zeros(rows, 4, 8, 8), torch.zeros(rows), conditioning, adapters=adapters)


@pytest.mark.parametrize(("rows", "beside", "factor"), [(1, False, 1.0), (1, True, 1.5), (2, True, 1.5)])
def test_pass_with_unpatched_loras_takes_longer(
    rows: int, beside: bool, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    model = PacedModel(PACE, torch.float32)

    encoding = model.encode(inputs(rows, beside=beside))
    model.decode(inputs(rows, beside=beside), encoding)
    model.predict(inputs(rows, beside=beside))

    halves = [PACE.encode.of(rows) * factor, PACE.decode.of(rows) * factor]
    assert slept == pytest.approx([*halves, sum(halves)])


def test_pass_includes_its_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = iter([100.0, 100.004, 200.0, 201.0])
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    model = PacedModel(PACE, torch.float32)

    model.encode(inputs(1, beside=False))
    model.encode(inputs(1, beside=False))

    assert slept == pytest.approx([PACE.encode.of(1) - 0.004, 0.0])

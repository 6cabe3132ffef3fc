"""Test sizes and load times of components against the paper's ranges and means (MLoRA, sections 2.1 and 5.2)."""

from statistics import fmean

import pytest

from lab.workloads.components import GB, KINDS, uses_of_choices, uses_of_log
from lab.workloads.production import Choice
from lab.workloads.readers import ProductionRequest


def test_kinds_have_papers_sizes_and_mean_load() -> None:
    for kind, bounds in KINDS.items():
        made = [bounds.loadable(f"{kind}-{index}") for index in range(2_000)]

        assert all(bounds.least_gb <= one.memory_bytes / GB <= bounds.most_gb for one in made), kind
        assert fmean(one.load_s for one in made) == pytest.approx(bounds.mean_load_s, rel=0.05), kind
        assert max(made, key=lambda one: one.load_s) == max(made, key=lambda one: one.memory_bytes), kind


def test_uses_have_each_component_once_and_times() -> None:
    requests = [
        ProductionRequest(9.0, "TXT_2_IMG", True, 30.0, "G1", 1, 30, "M1", (("L1", 0.8), ("L1", 0.5), ("L2", 1.0))),
        ProductionRequest(5.0, "TXT_2_IMG", True, 30.0, "G2", 1, 30, "M2", ()),
    ]
    choices = [Choice("u", "M1", ("L1",), ("C1",))]

    assert [(use.at_s, [one.name for one in use.components]) for use in uses_of_log(requests)] == [
        (5.0, ["M2"]),
        (9.0, ["M1", "L1", "L2"]),
    ]
    assert [[one.name for one in use.components] for use in uses_of_choices(choices, [1.0])] == [["M1", "L1", "C1"]]

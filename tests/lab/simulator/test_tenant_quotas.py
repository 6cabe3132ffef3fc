"""Test quotas in the simulator: those of the live dataplane."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lab.runs import Outcome
from lab.simulator.scenario_file import read_scenario
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import TenantQuota
from tests.lab.simulator.scenarios import arrivals, run
from tests.lab.simulator.test_scenario_file import FLEET, SCENARIO

TENANTS = """
[[tenants]]
name = "greedy"
requests_per_s = 0.5
burst_count = 2
concurrent_count = 7
cost_per_minute = 1e6
weight = 2.0
pools = ["heavy"]
"""


def scenario_of(tmp_path: Path, tenants: str) -> Path:
    (tmp_path / "fleet.toml").write_text(FLEET)
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.replace('["diffserve", "clipper-light"]', '["resident"]') + tenants)
    return path


def test_the_tenants_of_a_file_are_quotas(tmp_path: Path) -> None:
    quotas = read_scenario(scenario_of(tmp_path, TENANTS)).scenarios[0].quotas

    assert quotas == (("greedy", TenantQuota(0.5, 2, 7, 1e6, None, 2.0, ("heavy",))),)


def test_a_wrong_quota_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_scenario(scenario_of(tmp_path, TENANTS.replace("weight = 2.0", "weight = 0.0")))

    assert "weight: must be between 0.01 and 100, got 0" in refused.value.message
    assert ":2" in refused.value.message


def test_a_tenant_over_its_quota_is_refused_while_another_is_served(tmp_path: Path) -> None:
    """Each sends eight in two seconds; a rate of a half with a burst of two admits two immediately and a third at 2
    s."""
    scenario = read_scenario(scenario_of(tmp_path, TENANTS)).scenarios[0]
    workload = arrivals([number * 0.25 for number in range(9) for _ in "ab"], steps=50, deadline_s=60.0)
    asked = tuple(
        replace(arrival, tenant="greedy" if number % 2 else "modest")
        for number, arrival in enumerate(workload.arrivals)
    )

    records = run(scenario, replace(workload, arrivals=asked))

    outcomes = Counter((record.tenant, record.outcome) for record in records)
    assert outcomes == {
        ("modest", Outcome.COMPLETED): 9,
        ("greedy", Outcome.COMPLETED): 3,
        ("greedy", Outcome.REJECTED): 6,
    }

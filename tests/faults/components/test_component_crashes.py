"""Kill processes at every change that they make to a component store's disk: downloads, evictions, swaps of models."""

from pathlib import Path

import pytest

from tests.support.component_crashes import SCENARIOS, crash_components

pytestmark = pytest.mark.faults


@pytest.mark.timeout(600)
@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("kind", ["kill", "again", "full", "power"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_store_is_right_after_a_crash_at_any_change(tmp_path: Path, scenario: str, kind: str, connections: int) -> None:
    crashes = crash_components(tmp_path, scenario, kind, connections=connections)

    assert crashes >= (2 if scenario == "deletion" else 15)

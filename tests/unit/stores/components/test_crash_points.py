"""Some of the changes at which `tests/faults/components` crashes a store."""

from pathlib import Path

import pytest

from tests.support.component_crashes import crash_components


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_eviction_is_repaired_after_a_crash(tmp_path: Path, kind: str) -> None:
    assert crash_components(tmp_path, "eviction", kind, stride=9) >= 2

"""Settings of cells that a frontdoor and an edge reject."""

import re
import subprocess
import sys

import pytest

from pentimento.settings import SettingsError, load_settings
from services.edge.settings import EdgeSettings
from services.frontdoor.settings import FrontdoorSettings
from tests.support.refusals import wrong_refusals

WRONG_CELLS = [
    (["--cells", "a=x:1,b=y:1"], "--cells must have --frontdoor-id, got none named 'frontdoor'"),
    (["--cells", "a=x:1,a=y:1", "--frontdoor-id", "a"], "--cells must name each cell once, got a twice"),
    (["--cells", "a=x:1", "--frontdoor-id", "a", "--cell-lists", "a+z"], "--cell-lists must name cells of --cells"),
    (["--cell-lists", "a"], "--cell-lists needs --cells"),
]


def test_frontdoor_settings_of_wrong_cells_are_rejected_by_name() -> None:
    rows = [(FrontdoorSettings, "frontdoor", arguments, re.escape(message)) for arguments, message in WRONG_CELLS]

    assert wrong_refusals(SettingsError, load_settings, rows) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "a"], "--cells must be NAME=ADDRESS"),
        (["--cells", "a=x:1", "--cell-lists", "b"], "--cell-lists must name cells of --cells, got 'b'"),
        (["--cell-lists", "a"], "--cell-lists needs --cells"),
    ],
)
def test_edge_settings_of_wrong_cells_are_rejected_by_name(arguments: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(EdgeSettings, "edge", arguments)
    assert message in str(caught.value)


TOLD = "import prometheus_client, services.frontdoor.metrics; print(prometheus_client.generate_latest().decode())"


def test_counters_of_a_fresh_process_begin_at_zero() -> None:
    """A rate misses a count that begins with the first event."""
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    fresh = set(done.stdout.splitlines())

    states = ("accepted", "rejected", "completed", "failed", "cancelled", "expired")
    assert {f'pentimento_frontdoor_requests_total{{state="{state}"}} 0.0' for state in states} <= fresh
    for stage in ("embedder", "gateway", "reserve", "commit", "release", "report", "quality"):
        for reason in ("slow", "unavailable", "refused"):
            assert f'pentimento_frontdoor_cache_skips_total{{reason="{reason}",stage="{stage}"}} 0.0' in fresh

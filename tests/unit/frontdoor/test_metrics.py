"""What a frontdoor tells of before anything has happened."""

import subprocess
import sys

import pytest

TOLD = "import prometheus_client, services.frontdoor.metrics; print(prometheus_client.generate_latest().decode())"


@pytest.fixture(scope="module")
def fresh() -> set[str]:
    """Return the lines of /metrics of a process that has just started."""
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("state", ["accepted", "rejected", "completed", "failed", "cancelled", "expired"])
def test_requests_of_every_state_are_counted_from_nought(state: str, fresh: set[str]) -> None:
    """A rate sees nothing of a count that begins with the first event."""
    assert f'pentimento_frontdoor_requests_total{{state="{state}"}} 0.0' in fresh


@pytest.mark.parametrize("reason", ["slow", "unavailable", "refused"])
@pytest.mark.parametrize("stage", ["embedder", "gateway", "reserve", "commit", "release", "report", "quality"])
def test_skips_of_the_cache_are_counted_from_nought(stage: str, reason: str, fresh: set[str]) -> None:
    assert f'pentimento_frontdoor_cache_skips_total{{reason="{reason}",stage="{stage}"}} 0.0' in fresh

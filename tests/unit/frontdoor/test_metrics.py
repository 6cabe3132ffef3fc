"""What a frontdoor tells of before anything has happened."""

import subprocess
import sys

TOLD = "import prometheus_client, services.frontdoor.metrics; print(prometheus_client.generate_latest().decode())"


def test_counters_of_a_fresh_process_begin_at_zero() -> None:
    """A rate sees nothing of a count that begins with the first event."""
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    fresh = set(done.stdout.splitlines())

    states = ("accepted", "rejected", "completed", "failed", "cancelled", "expired")
    assert {f'pentimento_frontdoor_requests_total{{state="{state}"}} 0.0' for state in states} <= fresh
    for stage in ("embedder", "gateway", "reserve", "commit", "release", "report", "quality"):
        for reason in ("slow", "unavailable", "refused"):
            assert f'pentimento_frontdoor_cache_skips_total{{reason="{reason}",stage="{stage}"}} 0.0' in fresh

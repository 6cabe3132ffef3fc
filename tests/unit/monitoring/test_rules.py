"""Prometheus' own tool plays series through the alerts: each fires on its condition, and none where all is well."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(__file__).parents[3] / "deploy" / "helm" / "pentimento" / "files" / "rules.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool here: Debian's package prometheus has it")

REQUESTS, SECONDS = "pentimento_frontdoor_requests_total", "pentimento_frontdoor_request_seconds"
# Seven healthy hours of a suite: 4 requests in 10,000 end without an image, 2 % take longer than 30 s.
WELL = {
    f'{REQUESTS}{{state="accepted"}}': "0+10000x420",
    f'{REQUESTS}{{state="rejected"}}': "0+200x420",
    f'{REQUESTS}{{state="completed"}}': "0+9996x420",
    f'{REQUESTS}{{state="failed"}}': "0+3x420",
    f'{REQUESTS}{{state="expired"}}': "0+1x420",
    f'{SECONDS}_count{{state="completed"}}': "0+10000x420",
    f'{SECONDS}_bucket{{state="completed",le="30.0"}}': "0+9800x420",
    "pentimento_frontdoor_workers_count": "4x420",
    "pentimento_frontdoor_refusing_workers_count": "0x420",
    "pentimento_frontdoor_reruns_count": "0+1x420",
    'pentimento_frontdoor_cache_skips_total{stage="lookup"}': "0+1000x420",
    'pentimento_gateway_reuse_kept_share{which="high"}': "0.96x420",
    "pentimento_frontdoor_spooled_bytes": "0x420",
    "pentimento_frontdoor_free_bytes": "5e9x420",
    "pentimento_controller_mismatched_workers_count": "0x420",
    "pentimento_controller_allocation_failures_total": "0x420",
    "pentimento_rpc_rejected_callers_total": "0x420",
    'pentimento_worker_event_loop_lag_seconds_bucket{le="0.1"}': "0+100x420",
    'pentimento_worker_event_loop_lag_seconds_bucket{le="+Inf"}': "0+100x420",
    "pentimento_worker_out_of_memory_total": "0x420",
}
# An alert, series that replace the ones above, and the labels that it fires with in addition to its own.
CASES: list[tuple[str, dict[str, str], list[dict[str, str]]]] = [
    # 2 % fail: twenty times what 30 days allow, which uses up the budget in a day and a half.
    (
        "PentimentoAvailabilityBurn",
        {f'{REQUESTS}{{state="failed"}}': "0+200x420"},
        [
            {"severity": "page", "window": "1h"},
            {"severity": "page", "window": "6h"},
            {"severity": "ticket", "window": "3d"},
        ],
    ),
    # 0.8 % fail: eight times, slow enough for the second window only.
    (
        "PentimentoAvailabilityBurn",
        {f'{REQUESTS}{{state="expired"}}': "0+80x420"},
        [{"severity": "page", "window": "6h"}, {"severity": "ticket", "window": "3d"}],
    ),
    # 40 % are slower than 30 s; fourteen times 5 % is more than 70 %.
    (
        "PentimentoLatencyBurn",
        {f'{SECONDS}_bucket{{state="completed",le="30.0"}}': "0+6000x420"},
        [{"severity": "page", "window": "6h"}, {"severity": "ticket", "window": "3d"}],
    ),
    ("PentimentoNoWorkers", {"pentimento_frontdoor_workers_count": "0x420"}, [{"severity": "page"}]),
    ("PentimentoRefusingWorkers", {"pentimento_frontdoor_refusing_workers_count": "1x420"}, [{"severity": "ticket"}]),
    ("PentimentoRejections", {f'{REQUESTS}{{state="rejected"}}': "0+600x420"}, [{"severity": "ticket"}]),
    ("PentimentoReruns", {"pentimento_frontdoor_reruns_count": "0+0x380 0+1x40"}, [{"severity": "ticket"}]),
    (
        "PentimentoCacheSkipped",
        {'pentimento_frontdoor_cache_skips_total{stage="lookup"}': "0+2500x420"},
        [{"severity": "ticket", "stage": "lookup"}],
    ),
    (
        "PentimentoHitsLoseQuality",
        {'pentimento_gateway_reuse_kept_share{which="high"}': "0.94x420"},
        [{"severity": "ticket", "which": "high"}],
    ),
    ("PentimentoObjectStoreAway", {"pentimento_frontdoor_spooled_bytes": "4096x420"}, [{"severity": "page"}]),
    ("PentimentoDiskNearlyFull", {"pentimento_frontdoor_free_bytes": "3e9x420"}, [{"severity": "page"}]),
    ("PentimentoRejectedCallers", {"pentimento_rpc_rejected_callers_total": "0x384 1x35"}, [{"severity": "ticket"}]),
    (
        "PentimentoMismatchedWorkers",
        {"pentimento_controller_mismatched_workers_count": "1x420"},
        [{"severity": "ticket"}],
    ),
    (
        "PentimentoAllocationFails",
        {"pentimento_controller_allocation_failures_total": "0+1x420"},
        [{"severity": "ticket"}],
    ),
    (
        "PentimentoWorkerOverloaded",
        {
            'pentimento_worker_event_loop_lag_seconds_bucket{le="0.1"}': "0+98x420",
            'pentimento_worker_event_loop_lag_seconds_bucket{le="1.0"}': "0+100x420",
        },
        [{"severity": "ticket"}],
    ),
    ("PentimentoDeviceMemory", {"pentimento_worker_out_of_memory_total": "0+1x420"}, [{"severity": "ticket"}]),
]
RERUNS = {"pentimento_frontdoor_reruns_count": "0+0x420"}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def played(tmp_path: Path, series: dict[str, str], expected: dict[str, list[dict[str, str]]]) -> str:
    """Return promtool's output for the alerts after 6.5 hours of the series; "" if all are as expected."""
    annotations = {rule["alert"]: rule["annotations"] for rule in alerts()}
    tests = [
        {
            "eval_time": "6h30m",
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels, "exp_annotations": annotations[name]} for labels in expected.get(name, [])
            ],
        }
        for name in annotations
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": tests}],
    }
    path = tmp_path / "play.yml"
    path.write_text(json.dumps(document))
    assert PROMTOOL is not None
    ended = subprocess.run([PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_every_alert_has_a_case() -> None:
    assert {rule["alert"] for rule in alerts()} == {name for name, _, _ in CASES}


@needs_promtool
def test_healthy_suite_fires_no_alert(tmp_path: Path) -> None:
    assert played(tmp_path, WELL | RERUNS, {}) == ""


@needs_promtool
@pytest.mark.parametrize(
    ("name", "series", "fired"), CASES, ids=[f"{index}-{one[0]}" for index, one in enumerate(CASES)]
)
def test_alert_fires_on_its_condition_alone(
    tmp_path: Path, name: str, series: dict[str, str], fired: list[dict[str, str]]
) -> None:
    assert played(tmp_path, WELL | RERUNS | series, {name: fired}) == ""

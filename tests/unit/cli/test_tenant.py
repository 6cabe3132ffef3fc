"""Test the calls and the output of `pentimento tenant`."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from pentimento.cli.tenant import changed_quota, keys_table, seconds, tenant, tenants_table, usage_table, without
from pentimento.clients.frontdoor import TenantsClient
from pentimento.domain.erasure import ErasedKind, Erasure, ErasureState, receipt_of
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import DAY_S, HOUR_S, Tenant, TenantKey, TenantQuota, UsagePeriod
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.receipts import seal
from pentimento.supervisor.access import keep_receipt_key
from services.frontdoor.tenants.administration import MAX_USAGE_S

NOTHING: dict[str, object] = dict.fromkeys(
    ("requests_per_s", "burst_count", "concurrent_count", "cost_per_minute", "cache_bytes", "weight", "retention_h"),
    None,
) | {"pools": ()}
DELETED = (ErasedKind("results", 7, 70),)
QUOTA = TenantQuota(2.0, 5, 8, 1e9, 1 << 30, 2.0, ("light",), 1.5)


def lines(table: Table) -> list[str]:
    console = Console(width=200, record=True)
    console.print(table)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_quota_without_options_stays() -> None:
    assert changed_quota(QUOTA, NOTHING) == QUOTA
    assert changed_quota(QUOTA, NOTHING | {"weight": 3.0, "pools": ("heavy",)}) == TenantQuota(
        2.0, 5, 8, 1e9, 1 << 30, 3.0, ("heavy",), 1.5
    )


def test_bound_outside_its_limits_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"weight: must be between 0\.01 and 100"):
        changed_quota(QUOTA, NOTHING | {"weight": 0.0})


def test_removed_bound_removes_dependent_bounds() -> None:
    assert without(QUOTA, ()) == QUOTA
    assert without(QUOTA, ("requests_per_s", "pools", "retention_h")) == TenantQuota(None, None, 8, 1e9, 1 << 30, 2.0)


@pytest.mark.parametrize(("text", "found"), [(None, None), ("90d", 90 * DAY_S), ("1.5h", 5400), ("0.1s", 1)])
def test_times_are_whole_seconds(text: str | None, found: int | None) -> None:
    assert seconds("grace", text) == found


def test_tenants_are_shown_with_their_bounds() -> None:
    rows = lines(tenants_table([Tenant("acme", QUOTA), Tenant("free", TenantQuota(requests_per_s=0.5))]))

    assert rows[0].split("  ")[0] == "tenant"
    assert rows[1].split() == ["acme", "2", "5", "8", "1e+09", "1073741824", "1.5", "2", "light"]
    assert rows[2].split() == ["free", "0.5", "1", "-", "-", "-", "-", "1", "all"]


def test_keys_table_shows_state_of_each_key() -> None:
    keys = [
        TenantKey("a", "acme", 0.0),
        TenantKey("b", "acme", 0.0, expires_at=5.0),
        TenantKey("c", "acme", 0.0, expires_at=50.0, revoked_at=1.0),
    ]

    assert [row.split()[-1] for row in lines(keys_table(keys, 10.0))[1:]] == ["good", "expired", "revoked"]


@pytest.mark.parametrize(("length_s", "at"), [(DAY_S, "1970-01-02"), (HOUR_S, "1970-01-02 00:00")])
def test_usage_is_shown_by_its_period(length_s: int, at: str) -> None:
    period = UsagePeriod(DAY_S, 3, 2, 1, 1e6, 0.25, 7, {"TENANT_QUOTA": 4})

    assert lines(usage_table([period], length_s))[1].split("  ")[0] == at
    assert lines(usage_table([period], length_s))[1].split()[-8:] == [
        *("3", "2", "1", "1e+06", "0.2", "7"),
        *("TENANT_QUOTA", "4"),
    ]


def test_usage_since_may_reach_the_kept_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Answering(TenantsClient):
        def __init__(self) -> None:
            """Stand for a client without a channel."""

        async def usage(self, tenant: str, from_ms: int, to_ms: int, period_s: int = DAY_S) -> tuple[UsagePeriod, ...]:
            asked.append((from_ms, to_ms))
            return ()

    monkeypatch.setattr("pentimento.cli.tenant.ask", lambda options, question: asyncio.run(question(Answering())))
    done = [CliRunner().invoke(tenant, ["usage", "acme", "--since", since]) for since in ("400d", "401d")]

    ((from_ms, to_ms),) = asked
    # From the beginning of the day; the administration gives as much at once.
    assert (done[0].exit_code, from_ms % (DAY_S * 1000)) == (0, 0)
    assert 400 * DAY_S * 1000 < to_ms - from_ms <= MAX_USAGE_S * 1000
    assert str(done[1].exception) == "since: must be at most 400d, for which usage is kept"


def test_receipt_is_printed_and_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key_file = keep_receipt_key(tmp_path)
    assert keep_receipt_key(tmp_path).read_text() == key_file.read_text()
    key = read_private_key(key_file, "receipt_key_file")
    receipt = receipt_of(Erasure("acme", "*2*acme", ErasureState.RUNNING, 1.0, 2.0, deleted=DELETED), 3.0, {})
    done = Erasure("acme", "*2*acme", ErasureState.DONE, 1.0, 2.0, 3.0, DELETED, seal(receipt, key))
    unfinished = Erasure("acme", "*3*acme", ErasureState.RUNNING, 4.0, waits_for="requests")
    found = [done, unfinished]
    monkeypatch.setattr("pentimento.cli.tenant.ask", lambda options, question: found)
    file = tmp_path / "receipt.json"
    file.write_text(CliRunner().invoke(tenant, ["receipt", "acme"]).output)
    public_key = key.public_key().public_bytes_raw().hex()

    checked = CliRunner().invoke(tenant, ["check-receipt", str(file), "--public-key", public_key])
    unchecked = CliRunner().invoke(tenant, ["check-receipt", str(file)])
    listed = CliRunner().invoke(tenant, ["erasures", "--json"])
    file.write_text(file.read_text().replace('"count": 7', '"count": 8'))
    changed = CliRunner().invoke(tenant, ["check-receipt", str(file)])
    file.write_bytes(b"\xff")
    binary = CliRunner().invoke(tenant, ["check-receipt", str(file)])
    file.write_text(seal({"form": "other/1"}, key))
    other = CliRunner().invoke(tenant, ["check-receipt", str(file), "--public-key", public_key])
    found.remove(done)
    none = CliRunner().invoke(tenant, ["receipt", "acme"])

    assert checked.output.splitlines() == [
        "acme (*2*acme): erased until 1970-01-01T00:00:03.000+00:00",
        "  requests: 0, 0 bytes",
        "  results: 7, 70 bytes",
        "  inputs: 0, 0 bytes",
        "  compared_pairs: 0, 0 bytes",
        *(f"  cache_{kind}: 0, 0 bytes" for kind in ("entries", "latents", "images", "vectors")),
    ]
    assert [json.loads(line)["state"] for line in listed.output.splitlines()] == ["done", "running"]
    assert (checked.stderr, unchecked.stdout) == ("", checked.stdout)
    assert unchecked.stderr == "who signed it is not checked: give --public-key\n"
    assert str(binary.exception) == "receipt: must be a JSON document with receipt and digest"
    assert str(other.exception) == "form: must be pentimento.erasure/1"
    assert str(changed.exception) == "digest: must be that of the receipt, which was changed"
    assert str(none.exception) == "name: no erasure of acme is done"

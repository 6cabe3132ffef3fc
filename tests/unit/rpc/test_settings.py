"""Test wrong rpc settings through `load_settings`, as a service loads them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from pentimento.rpc.settings import is_local, reachable_address
from pentimento.settings import SettingsError, load_settings


@dataclass(frozen=True)
class Settings:
    rpc: RpcServerSettings
    channel: RpcChannelSettings


@pytest.fixture
def pem(tmp_path: Path) -> str:
    file = tmp_path / "x.pem"
    file.write_text("-----BEGIN X-----\n")
    return str(file)


def refusal(*argv: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings, "embedder", argv, {})
    return str(caught.value)


WRONG = (
    ("--listen ", "at least one address"),
    ("--listen unix:", "1 to 107 bytes, got 0"),
    ("--listen unix:/" + "x" * 107, "1 to 107 bytes, got 108"),
    ("--listen 8080", " --listen must be unix:/path or host:port"),
    ("--listen localhost:", "unix:/path or host:port"),
    ("--listen localhost:65536", "0 to 65535"),
    ("--listen localhost:-1", "0 to 65535"),
    ("--listen my..host:50051", " --listen must be unix:/path or host:port"),
    ("--metrics-listen x", " --metrics-listen must be host:port"),
    ("--metrics-listen unix:/run/metrics", " --metrics-listen must be host:port"),
    ("--metrics-listen my..host:9090", " --metrics-listen must be host:port"),
    ("--max-concurrent-calls 0", "at least 1"),
    ("--token-file /nonexistent", "no such file"),
    ("--service-token-file /nonexistent", "no such file"),
    ("--tls-cert-file PEM", "given together"),
    ("--tls-key-file PEM", "given together"),
    ("--tls-client-ca-file PEM", "needs --tls-cert-file"),
    ("--tls-callers-file PEM", "needs --tls-client-ca-file"),
    ("--tls-client-key-file PEM", "given together"),
    ("--tls-client-cert-file PEM --tls-client-key-file PEM", "needs --tls-ca-file"),
)


def test_settings_wrong_value_is_named(pem: str) -> None:
    for argv, words in WRONG:
        error = refusal(*(part.replace("PEM", pem) for part in argv.split(" ")))
        assert words in error, (argv, error)


def test_settings_malformed_variable_of_opentelemetry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")
    assert (
        refusal()
        == "embedder: OTEL_EXPORTER_OTLP_ENDPOINT must be http://host:port or https://host:port, got 'collector'"
    )


def test_settings_addresses_are_accepted_and_classified() -> None:
    for address in ("unix:/" + "x" * 106, "localhost:0", "h:65535", "[::1]:80"):
        assert load_settings(Settings, "embedder", ["--listen", address], {}).rpc.listen == (address,)
    addresses = ("unix:/s", "127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1")
    assert [is_local(address) for address in addresses] == [True, True, True, True, False]
    for listen, reached in (
        ("0.0.0.0:50051", "3f2a:50051"),
        ("[::]:50051", "3f2a:50051"),
        ("10.0.0.7:50051", "10.0.0.7:50051"),
        ("unix:/run/worker.sock", "unix:/run/worker.sock"),
    ):
        assert reachable_address(listen, "3f2a") == reached

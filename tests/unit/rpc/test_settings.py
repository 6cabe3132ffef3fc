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
    ("--tls-dir /nonexistent", "--tls-dir no such file or directory: /nonexistent"),
    ("--tls-dir PEM", "--tls-dir PEM/tls.crt: cannot be read: Not a directory"),
    ("--mutual-tls", "--mutual-tls needs --tls-dir with tls.crt, tls.key and ca.crt"),
    ("--tls-callers-file PEM", "--tls-callers-file needs --mutual-tls"),
    ("--tls-ca-file PEM", "`tls_dir` has it as ca.crt"),
)


def test_settings_wrong_value_is_named(pem: str) -> None:
    for argv, words in WRONG:
        error = refusal(*(part.replace("PEM", pem) for part in argv.split(" ")))
        assert words.replace("PEM", pem) in error, (argv, error)


@pytest.mark.parametrize(
    ("present", "flags", "words"),
    [
        ("", "", "--tls-dir DIR: has neither tls.crt with tls.key nor ca.crt"),
        ("tls.crt", "", "--tls-dir DIR: tls.key is missing"),
        ("tls.key ca.crt", "", "--tls-dir DIR: tls.crt is missing"),
        ("ca.crt", "--listen=h:1", "--tls-dir DIR: tls.crt is missing, which --listen h:1 needs"),
        ("ca.crt", "--mutual-tls", "--mutual-tls: tls.crt and tls.key missing in --tls-dir DIR"),
        ("tls.crt tls.key", "--mutual-tls", "--mutual-tls: ca.crt missing in --tls-dir DIR"),
    ],
)
def test_settings_incomplete_tls_directory_names_missing_file(
    present: str, flags: str, words: str, tmp_path: Path
) -> None:
    for name in present.split():
        (tmp_path / name).touch()

    assert refusal("--tls-dir", str(tmp_path), *flags.split()) == f"embedder: {words.replace('DIR', str(tmp_path))}"


def test_settings_unreadable_tls_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").mkdir()

    assert f"--tls-dir {tmp_path}/ca.crt: cannot be read: Is a directory" in refusal("--tls-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("present", "flags", "served", "called"),
    [
        ("ca.crt", "--listen=unix:/s", "", "ca.crt"),
        ("tls.crt tls.key", "--listen=h:1", "tls.crt tls.key", "tls.crt tls.key"),
        ("tls.crt tls.key ca.crt", "--listen=h:1", "tls.crt tls.key", "tls.crt tls.key ca.crt"),
        ("tls.crt tls.key ca.crt", "--listen=h:1 --mutual-tls", "tls.crt tls.key ca.crt", "tls.crt tls.key ca.crt"),
    ],
)
def test_settings_files_of_tls_directory_are_used_by_both_sides(
    present: str, flags: str, served: str, called: str, tmp_path: Path
) -> None:
    for name in present.split():
        (tmp_path / name).touch()
    loaded = load_settings(Settings, "embedder", ["--tls-dir", str(tmp_path), *flags.split()], {})

    assert [path.name for path in loaded.rpc.tls.served.paths] == served.split()
    assert [path.name for path in loaded.channel.tls.files.paths] == called.split()


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

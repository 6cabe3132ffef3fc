"""What the rpc settings refuse, through `load_settings` as a service would."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
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


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--listen", ""], "at least one address"),
        (["--listen", "unix:"], "1 to 107 bytes, got 0"),
        (["--listen", "unix:/" + "x" * 107], "1 to 107 bytes, got 108"),
        (["--listen", "8080"], "unix:/path or host:port"),
        (["--listen", "localhost:"], "unix:/path or host:port"),
        (["--listen", "localhost:65536"], "0 to 65535"),
        (["--listen", "localhost:-1"], "0 to 65535"),
        (["--metrics-listen", "x"], "--metrics-listen"),
        (["--max-message-bytes", "1023"], "at least 1024"),
        (["--max-concurrent-calls", "0"], "at least 1"),
        (["--token-file", "/nonexistent"], "no such file"),
        (["--service-token-file", "/nonexistent"], "no such file"),
        (["--tls-cert-file", "PEM"], "given together"),
        (["--tls-key-file", "PEM"], "given together"),
        (["--tls-client-ca-file", "PEM"], "needs --tls-cert-file"),
        (["--tls-client-key-file", "PEM"], "given together"),
        (["--tls-client-cert-file", "PEM", "--tls-client-key-file", "PEM"], "needs --tls-ca-file"),
        (["--default-deadline-ms", "0"], "at least 1"),
    ],
)
def test_a_wrong_value_is_named(argv: list[str], words: str, pem: str) -> None:
    assert words in refusal(*(part.replace("PEM", pem) for part in argv))


def test_both_sides_fit_into_one_service() -> None:
    loaded = load_settings(Settings, "embedder", ["--listen", "unix:/run/e.sock,[::1]:0"], {})

    assert loaded.rpc.listen == ("unix:/run/e.sock", "[::1]:0")

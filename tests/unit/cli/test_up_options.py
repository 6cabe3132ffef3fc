"""Test wrong, unknown and former options of `pentimento up`."""

import importlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from pentimento.supervisor.suite_settings import SuiteSettings
from tests.support.processes import run_command

# The package's attribute `up` is the command once it was called.
up_module = importlib.import_module("pentimento.cli.up")


def test_unknown_policy_is_refused_by_option(tmp_path: Path) -> None:
    done = run_command("up", "--policy", "jiont", "--model", "m", "--state-dir", str(tmp_path / "state"))

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("pentimento: --policy must be one of ")
    assert "diffserve, " in done.stderr and "'jiont' (did you mean joint?)" in done.stderr
    assert not (tmp_path / "state").exists()


def test_unknown_model_stops_up_with_one_line(tmp_path: Path) -> None:
    done = run_command("up", "--model", "no-such-model", "--state-dir", str(tmp_path / "state"))

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no-such-model" in done.stderr


@pytest.mark.parametrize("slo_s", ["nan", "inf", "-1", "0"])
def test_invalid_slo_is_refused_before_start(slo_s: str, tmp_path: Path) -> None:
    state = tmp_path / "state"

    done = run_command("up", "--policy", "joint", "--slo-s", slo_s, "--state-dir", str(state))

    assert (done.returncode, state.exists()) == (2, False)
    assert "--slo-s" in done.stderr


def test_malformed_token_file_stops_up_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("# Not TOML\n- at all\n")
    done = run_command(
        "up",
        "--listen",
        "",
        "--http",
        "",
        "--token-file",
        str(tmp_path / "tokens.toml"),
        "--state-dir",
        str(tmp_path / "state"),
    )

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"pentimento: {tmp_path}/tokens.toml: not valid TOML")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--eviction", "mru", "'fifo', 'lru', 'lfu', 'lcbfu', 'aged', 'none'"),
        ("--cache-bias", "11", "-10<=x<=10"),
        ("--scratch-share", "1.5", "0.0<=x<=1.0"),
        ("--renoised-share", "nan", "finite"),
        ("--match-predictor", "on", "'auto', 'off', 'always'"),
    ],
)
def test_up_names_allowed_values_of_cache_options(option: str, value: str, allowed: str) -> None:
    done = CliRunner().invoke(cli, ["up", option, value])

    assert done.exit_code == 2
    assert option in done.output and allowed in " ".join(done.output.split())


def planned_flags(monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, dict[str, object]]:
    """Return the flags that `up` with these options gives to services, without those of the default."""
    found: list[SuiteSettings] = []
    monkeypatch.setattr(up_module, "run_suite", lambda settings, state, **rest: found.append(settings) or 0)
    done = CliRunner().invoke(cli, ["up", "--listen", "", "--http", "", *options])
    assert done.exit_code == 0, done.output
    return {service: {flag: one for flag, one in flags.items() if one} for service, flags in found[0].flags.items()}


def test_up_leaves_defaults_to_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(planned_flags(monkeypatch).values())


def test_up_options_are_flags_of_their_services(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.touch()
    options = ["--thinning", "load", "--controlnet-pipelining", "on", "--cache-bias", "-2", "--weights", "fp8"]
    options += ["--registry-public-keys", str(key), "--adapters", str(tmp_path)]
    options += ["--profile-rule", "minimum", "--no-earned-reuse"]
    options += ["--c2pa-certificate-file", str(key)]

    assert planned_flags(monkeypatch, *options) == {
        "controller": {"profile-rule": "minimum"},
        "discriminator": {},
        "frontdoor": {
            **{"profile-rule": "minimum", "thinning": "load", "controlnet-pipelining": "on"},
            "c2pa-certificate-file": key,
        },
        "unet_worker": {
            **{"weights": "fp8", "adapters-dir": tmp_path, "registry-public-keys": key},
        },
        "controlnet_svc": {"registry-public-keys": key},
        "vectordb_gateway": {"profile-rule": "minimum", "cache-bias": -2, "no-earned-reuse": True},
    }


@pytest.mark.parametrize(("options", "rule"), [((), "mean"), (("--profile-rule", "minimum"), "minimum")])
def test_up_with_modm_reuses_by_the_mean(options: tuple[str, ...], rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned_flags(monkeypatch, "--policy", "modm", "--modm-mode", "throughput", *options)

    assert found["vectordb_gateway"] == {"profile-rule": rule}
    assert found["controller"]["modm-mode"] == "throughput"

"""Test wrong, unknown and former options of `pentimento up`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import cli
from tests.support.processes import run_command


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


@pytest.mark.parametrize("option", ["--profile", "--selector-profiles", "--thinning-profiles", "--pipelining-bounds"])
def test_former_option_of_up_names_its_successor(option: str) -> None:
    done = CliRunner().invoke(cli, ["up", option, "file.json"])

    assert done.exit_code == 2
    assert f"{option} is now --profiles FILE|DIR" in done.output


def test_up_with_certificate_without_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").touch()

    done = run_command(
        "up", "--c2pa-certificate-file", str(tmp_path / "chain.pem"), "--state-dir", str(tmp_path / "state")
    )

    assert done.returncode == 2
    assert "--c2pa-certificate-file and --c2pa-key-file need each other" in done.stderr

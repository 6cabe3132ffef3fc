"""Test the command line's help, one-line errors with the field's name, and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pentimento.cli import PLUGINS, SUBCOMMANDS, cli, describe, json_escape, programs
from pentimento.cli.generate import parse_size
from pentimento.domain.errors import FailedPrecondition, FieldViolation, InvalidArgument, NotFound
from pentimento.supervisor.child import SOURCE_ROOT
from tests.support.processes import run_command


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("pentimento.cli", {"grpc", "torch", "rich", "PIL"}), ("pentimento.cli.up", {"torch", "numpy"})],
)
def test_command_imports_no_heavy_library(module: str, heavy: set[str]) -> None:
    script = f"import sys; import {module}; print({heavy} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS.keys() - PLUGINS))
def test_every_listed_subcommand_exists(name: str) -> None:
    assert cli.get_command(None, name) is not None  # type: ignore[arg-type] # the context is not used


def test_generate_without_suite_names_remedies(tmp_path: Path) -> None:
    done = run_command("generate", "a red circle", "--state-dir", str(tmp_path / "none"))

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"pentimento: no suite serves from {tmp_path / 'none'}: start one with `pentimento up`, or give its address"
    ]


def test_wrong_usage_exits_with_2() -> None:
    done = run_command("generate", "a circle", "--seed", "-1")

    assert done.returncode == 2
    assert "--seed" in done.stderr


def test_profile_subcommand_has_its_own_flags(tmp_path: Path) -> None:
    done = run_command("profile", "cost", str(tmp_path), "--help")

    assert done.returncode == 0, done.stderr
    assert "--batch-sizes" in done.stdout


@pytest.mark.parametrize("command, told", [(["serve"], "FLAGS go to it"), (["profile"], "seconds of a denoising step")])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_command_that_forwards_flags_has_own_help(command: list[str], told: str, flag: str) -> None:
    done = CliRunner().invoke(cli, [*command, flag])

    assert done.exit_code == 0, done.output
    assert told in " ".join(done.output.split())


@pytest.mark.parametrize("name", sorted(programs.ZOO))
def test_zoo_subcommand_becomes_its_module_with_its_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    for variable in ("PYTHONPATH", "TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY"):
        monkeypatch.setenv(variable, "")

    CliRunner().invoke(cli, ["zoo", name, "heavy", "--steps", "5", "--help"], catch_exceptions=False)

    module, _ = programs.ZOO[name]
    assert started == [[sys.executable, "-P", "-m", module, "heavy", "--steps", "5", "--help"]]
    place = SOURCE_ROOT / Path(*module.split("."))
    assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SOURCE_ROOT", Path("/nowhere"), "take a checkout of the repository"),
        ("NEEDED", ("sys", "no_such_library"), "the zoo needs no_such_library"),
    ],
)
def test_zoo_names_missing_requirement(name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, name, value)

    with pytest.raises(FailedPrecondition, match=message):
        programs.start("zoo.train", ())


@pytest.mark.slow
def test_zoo_keeps_the_exit_status() -> None:
    done = run_command("zoo", "train", "no-such-part")

    assert done.returncode == 2
    assert "no-such-part" in done.stderr


@pytest.mark.parametrize(
    "words, code, line",
    [
        (b"jobs show \xff --address unix:/nobody", 1, "request_id: must be text that UTF-8 can carry"),
        (b"models remove \xff --controller-address unix:/nobody", 2, "'\\udcff' must be UTF-8 text"),
    ],
    ids=["a field of the API", "any other call"],
)
def test_undecodable_argument_is_refused_in_one_line(words: bytes, code: int, line: str) -> None:
    command = [sys.executable.encode(), b"-m", b"pentimento.cli", *words.split()]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (code, f"pentimento: {line}\n")


def test_character_outside_encoding_is_printed_as_json_escape() -> None:
    command = [sys.executable, "-m", "pentimento.cli", "token", "new", "--json", "--tenant", "Café 红 😀"]

    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("latin-1"))["tenant"] == "Café 红 😀"


def test_undecodable_file_name_is_printed_as_json_escape() -> None:
    error = UnicodeEncodeError("utf-8", "a\udcffb", 1, 2, "surrogates not allowed")

    assert json_escape(error) == ("\\udcff", 2)


def test_system_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = run_command(
        "generate", "a", "b", "--output-dir", str(tmp_path / "file" / "in-it"), "--address", "unix:/nobody"
    )

    assert (done.returncode, done.stderr) == (1, f"pentimento: {tmp_path / 'file' / 'in-it'}: Not a directory\n")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_full_output_device_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pentimento.cli", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )

    assert (done.returncode, done.stderr) == (1, "pentimento: No space left on device\n")


def test_image_with_unwritable_output_is_not_generated(tmp_path: Path) -> None:
    done = run_command("generate", "a red circle", "--output", "none/a.png", "--address", "unix:/nobody", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("pentimento: output: must ")


@pytest.mark.parametrize("command", [("generate",), ("jobs", "submit")])
def test_too_large_image_file_is_not_read(command: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*command, "a red circle", "--init-image", "/dev/zero", "--address", "unix:/nobody", cwd=tmp_path)

    expected = "pentimento: init-image: must name a file of at most 67108864 bytes, got /dev/zero\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_too_large_image_count_is_refused_by_option(tmp_path: Path) -> None:
    done = run_command("generate", "a red circle", "--count", "2000000000", "--address", "unix:/nobody", cwd=tmp_path)

    assert (done.returncode, "Invalid value for '--count'" in done.stderr) == (2, True)


def test_describe_names_every_field_or_the_message() -> None:
    violations = (FieldViolation("steps", "must be at most 100"), FieldViolation("size", "must be even"))
    error = InvalidArgument("INVALID_FIELD", "two fields", violations=violations)

    assert describe(error) == "steps: must be at most 100; size: must be even"
    assert describe(NotFound("X", "no such thing")) == "no such thing"


@pytest.mark.parametrize(
    ("text", "size"), [("64x32", (64, 32)), ("64", (64, 64)), ("64X32", (64, 32)), (None, (None, None))]
)
def test_parse_size_returns_width_and_height(text: str | None, size: tuple[int | None, int | None]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "64x", "64x32x3", "wide", "64x99999999999999999999"])
def test_wrong_size_names_the_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as wrong:
        parse_size(text)

    assert wrong.value.violations[0].field == "size"

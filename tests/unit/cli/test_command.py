"""The command line: help without grpc, one-line errors that name the field, exit codes."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from pentimento.cli import PLUGINS, SUBCOMMANDS, cli, describe, json_escape, programs, status
from pentimento.cli.connection import TLS_FILES
from pentimento.cli.generate import parse_size
from pentimento.domain.errors import FailedPrecondition, FieldViolation, InvalidArgument, NotFound
from pentimento.domain.identity import Role
from pentimento.rpc.tokens import hash_token, parse_tokens
from pentimento.supervisor.child import SOURCE_ROOT


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pentimento.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("pentimento.cli", {"grpc", "torch", "rich", "PIL"}), ("pentimento.cli.up", {"torch", "numpy"})],
)
def test_command_imports_no_heavy_library(module: str, heavy: set[str]) -> None:
    script = f"import sys; import {module}; print({heavy} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS.keys() - PLUGINS))
def test_every_subcommand_of_the_list_exists(name: str) -> None:
    assert cli.get_command(None, name) is not None  # type: ignore[arg-type] # the context is not used


def test_without_a_suite_generate_says_what_to_do(tmp_path: Path) -> None:
    done = run("generate", "a red circle", "--state-dir", str(tmp_path / "none"))

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"pentimento: no suite serves from {tmp_path / 'none'}: start one with `pentimento up`, or give its address"
    ]


def test_a_policy_that_there_is_not_is_refused_under_the_name_of_its_option(tmp_path: Path) -> None:
    done = run("up", "--policy", "jiont", "--model", "m", "--state-dir", str(tmp_path / "state"))

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith("pentimento: --policy must be one of ")
    assert "diffserve, " in done.stderr and "'jiont' (did you mean joint?)" in done.stderr
    assert not (tmp_path / "state").exists()


def test_where_nobody_answers_status_says_so_by_its_exit_code(tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path / 'nobody'}"
    addresses = [f"--{name}-address={nobody}" for name in ("controller", "frontdoor", "gateway")]

    plain, document = (CliRunner().invoke(status.status, [*addresses, *more]) for more in ((), ("--json",)))

    assert (plain.exit_code, document.exit_code) == (1, 1)
    assert "controller does not answer" in plain.output
    assert json.loads(document.output)["fleet"] is None


def test_watched_as_json_every_look_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues although no process answers."""
    nobody = f"unix:{tmp_path / 'nobody'}"
    addresses = [f"--{name}-address={nobody}" for name in ("controller", "frontdoor", "gateway")]
    looks = iter(range(3))

    async def sleep(seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "asyncio", SimpleNamespace(run=asyncio.run, sleep=sleep))
    record = tmp_path / "record"

    done = CliRunner().invoke(status.status, [*addresses, "--watch", "--json", f"--record={record}"])

    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(documents) == 4
    assert all(sorted(one["unanswered"]) == ["controller", "frontdoor", "gateway"] for one in documents)
    times = [one["at_ms"] for one in documents]
    assert times == sorted(times) and times[0] > 1_700_000_000_000
    assert (done.exit_code, record.read_text()) == (1, "")


def test_unknown_model_stops_up_with_one_line(tmp_path: Path) -> None:
    done = run("up", "--model", "no-such-model", "--state-dir", str(tmp_path / "state"))

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no-such-model" in done.stderr


@pytest.mark.parametrize("slo_s", ["nan", "inf", "-1", "0"])
def test_an_slo_that_is_none_is_refused_before_anything_starts(slo_s: str, tmp_path: Path) -> None:
    state = tmp_path / "state"

    done = run("up", "--policy", "joint", "--slo-s", slo_s, "--state-dir", str(state))

    assert (done.returncode, state.exists()) == (2, False)
    assert "--slo-s" in done.stderr


def test_a_token_file_that_is_none_stops_up_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("# Not TOML\n- at all\n")
    done = run(
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


def test_wrong_usage_is_exit_code_2() -> None:
    done = run("generate", "a circle", "--seed", "-1")

    assert done.returncode == 2
    assert "--seed" in done.stderr


def test_the_profile_of_a_model_takes_its_own_flags(tmp_path: Path) -> None:
    done = run("profile", "cost", str(tmp_path), "--help")

    assert done.returncode == 0, done.stderr
    assert "--batch-sizes" in done.stdout


@pytest.mark.parametrize("command, told", [(["serve"], "FLAGS go to it"), (["profile"], "seconds of a denoising step")])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_a_command_that_passes_flags_on_has_help_of_its_own(command: list[str], told: str, flag: str) -> None:
    done = CliRunner().invoke(cli, [*command, flag])

    assert done.exit_code == 0, done.output
    assert told in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("name", "now"),
    [
        ("profile", "profile cost MODEL"),
        ("selector-profile", "profile reuse MODEL"),
        ("thinning-profile", "profile steps MODEL"),
        ("handover-profile", "profile handover HEAVY --light LIGHT"),
        ("lora-bound", "profile lora MODEL"),
    ],
)
def test_former_bench_command_names_its_successor(name: str, now: str) -> None:
    done = CliRunner().invoke(cli, ["bench", name, "tiny-light"])

    assert done.exit_code == 2
    assert f"`bench {name}` is now `pentimento {now}`" in done.output


@pytest.mark.parametrize("option", ["--profile", "--selector-profiles", "--thinning-profiles", "--pipelining-bounds"])
def test_former_option_of_up_names_its_successor(option: str) -> None:
    done = CliRunner().invoke(cli, ["up", option, "file.json"])

    assert done.exit_code == 2
    assert f"{option} is now --profiles FILE|DIR" in done.output


@pytest.mark.parametrize(
    "words", [("add", "mine", "tiny-light", "--profile=f"), ("add-cascade", "c.json", "--handover-profile", "f")]
)
def test_former_option_of_models_names_its_successor(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["models", *words])

    assert done.exit_code == 2
    assert "is now --profiles FILE|DIR" in done.output


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
def test_zoo_says_what_it_lacks(name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, name, value)

    with pytest.raises(FailedPrecondition, match=message):
        programs.start("zoo.train", ())


@pytest.mark.slow
def test_zoo_keeps_the_exit_status() -> None:
    done = run("zoo", "train", "no-such-part")

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
def test_text_that_no_message_carries_is_one_line(words: bytes, code: int, line: str) -> None:
    command = [sys.executable.encode(), b"-m", b"pentimento.cli", *words.split()]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (code, f"pentimento: {line}\n")


def test_what_an_encoding_lacks_is_printed_as_json_writes_it() -> None:
    command = [sys.executable, "-m", "pentimento.cli", "token", "new", "--json", "--tenant", "Café 红 😀"]

    done = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.decode("latin-1"))["tenant"] == "Café 红 😀"


def test_a_file_s_name_that_is_no_text_is_printed_as_json_writes_it() -> None:
    error = UnicodeEncodeError("utf-8", "a\udcffb", 1, 2, "surrogates not allowed")

    assert json_escape(error) == ("\\udcff", 2)


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = run("generate", "a", "b", "--output-dir", str(tmp_path / "file" / "in-it"), "--address", "unix:/nobody")

    assert (done.returncode, done.stderr) == (1, f"pentimento: {tmp_path / 'file' / 'in-it'}: Not a directory\n")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="it takes a device that is always full")
def test_a_full_disk_behind_the_output_is_one_line() -> None:
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


def test_a_picture_that_could_not_be_saved_is_not_painted(tmp_path: Path) -> None:
    done = run("generate", "a red circle", "--output", "none/a.png", "--address", "unix:/nobody", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.startswith("pentimento: output: must ")


@pytest.mark.parametrize("command", [("generate",), ("jobs", "submit")])
def test_a_file_that_is_too_large_for_a_picture_is_not_read(command: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*command, "a red circle", "--init-image", "/dev/zero", "--address", "unix:/nobody", cwd=tmp_path)

    expected = "pentimento: init-image: must name a file of at most 67108864 bytes, got /dev/zero\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_a_number_of_pictures_that_no_server_paints_is_refused_by_its_option(tmp_path: Path) -> None:
    done = run("generate", "a red circle", "--count", "2000000000", "--address", "unix:/nobody", cwd=tmp_path)

    assert (done.returncode, "Invalid value for '--count'" in done.stderr) == (2, True)


def test_a_token_s_file_of_bytes_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff")

    done = run("jobs", "list", "--token", f"@{tmp_path / 'token'}", "--address", "unix:/nobody")

    assert (done.returncode, done.stderr) == (
        1,
        f"pentimento: token: {tmp_path / 'token'} cannot be read: it is no text\n",
    )


def test_new_token_matches_its_entry() -> None:
    done = run("token", "new", "--tenant", "acme", "--role", "admin")

    entries = parse_tokens(done.stderr, "stderr")
    assert list(entries) == [hash_token(done.stdout)]


def test_a_tenant_s_name_begins_no_other_entry_of_the_token_file() -> None:
    name = 'x", roles = ["admin"] } [[token]] \\ "'

    done = run("token", "new", "--tenant", name)

    (caller,) = parse_tokens(done.stderr, "stderr").values()
    assert (caller.tenant, caller.roles) == (name, frozenset({Role.USER}))


@pytest.mark.parametrize("name", ["", 'x"\nroles = ["admin"]\n#', " x"])
def test_a_name_that_no_tenant_may_have_gets_no_token(name: str) -> None:
    done = run("token", "new", "--tenant", name)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pentimento: tenant: must be 1 to 100 printable characters")


def test_describe_names_every_field_or_the_message() -> None:
    violations = (FieldViolation("steps", "must be at most 100"), FieldViolation("size", "must be even"))
    error = InvalidArgument("INVALID_FIELD", "two fields", violations=violations)

    assert describe(error) == "steps: must be at most 100; size: must be even"
    assert describe(NotFound("X", "no such thing")) == "no such thing"


@pytest.mark.parametrize(
    ("text", "size"), [("64x32", (64, 32)), ("64", (64, 64)), ("64X32", (64, 32)), (None, (None, None))]
)
def test_size(text: str | None, size: tuple[int | None, int | None]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "64x", "64x32x3", "wide", "64x99999999999999999999"])
def test_wrong_size_names_the_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as wrong:
        parse_size(text)

    assert wrong.value.violations[0].field == "size"


def commands_of(command: click.Command, name: str = "pentimento") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with its name."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for below in command.list_commands(context):
        found = command.get_command(context, below)
        assert found is not None
        yield from commands_of(found, f"{name} {below}")


def test_whatever_takes_a_token_takes_the_files_of_tls() -> None:
    pytest.importorskip("lab.commands", reason="walks commands of the lab too")
    callers = {name: {one.name for one in found.params} for name, found in commands_of(cli)}
    lacking = [name for name, options in callers.items() if "token" in options and not set(TLS_FILES) <= options]

    assert lacking == []
    assert "pentimento jobs submit" in callers


def test_up_with_a_certificate_and_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chain.pem").touch()

    done = run("up", "--c2pa-certificate-file", str(tmp_path / "chain.pem"), "--state-dir", str(tmp_path / "state"))

    assert done.returncode == 2
    assert "--c2pa-certificate-file and --c2pa-key-file need each other" in done.stderr

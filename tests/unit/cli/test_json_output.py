"""Test that every command with output prints documented JSON on request."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pentimento.cli import SUBCOMMANDS, adapters, cli, control, models, token
from pentimento.domain.adapters import Adapter, AdapterKind
from pentimento.domain.generation import ObjectReference
from pentimento.domain.image_request import PinnedImage
from pentimento.domain.models import RegisteredModels
from pentimento.supervisor.state import Endpoint, StateDirectory

pytest.importorskip("lab.commands", reason="walks commands of the lab too")
PAGE = Path(__file__).parents[3] / "docs" / "command-json.md"
# Commands that have no --json of their own, and why.
WITHOUT_JSON = {
    "completion": "prints a program for a shell",
    "serve": "becomes the service, whose log is on its stderr",
    "simulate": "becomes `python -m lab.simulator`, which takes --json itself",
    "journal renew": "becomes `python -m services.frontdoor.renewal`",
    **{name: "becomes `python -m pentimento.stores.backup`" for name in ("backup", "restore")},
    "discriminator train": "becomes `python -m services.discriminator.training`, which prints for people",
    "profile": "becomes `python -m services.unet_worker.profiling`, which writes a JSON file",
    "bench allocation": "prints nothing: it draws a file",
    **{f"zoo {name}": "becomes a program of the zoo" for name in ("list", "train", "export", "prompt-head")},
    **{f"zoo {name}": "becomes a program of the zoo" for name in ("discriminator", "eval", "sample", "cards")},
}


def commands(group: click.Group = cli, above: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command that acts, with its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


COMMANDS = dict(commands())


def has_json(command: click.Command) -> bool:
    return any(isinstance(option, click.Option) and option.opts == ["--json"] for option in command.params)


def test_every_command_prints_json_or_states_an_exception() -> None:
    assert {name for name, command in COMMANDS.items() if not has_json(command)} == WITHOUT_JSON.keys()
    # Whole groups are walked.
    assert {name.split()[0] for name in COMMANDS} == SUBCOMMANDS.keys()


def test_page_lists_every_command_with_json() -> None:
    named = {name for line in PAGE.read_text().splitlines() for name in re.findall(r"^\| `([a-z -]+)`", line)}

    assert named == COMMANDS.keys() - WITHOUT_JSON.keys()


def test_every_command_with_token_takes_tls_directory() -> None:
    options = {name: {one.name for one in command.params} for name, command in COMMANDS.items()}
    callers = {name for name, own in options.items() if "token" in own}

    assert {name for name in callers if "tls_dir" not in options[name]} == set()
    assert "jobs submit" in callers


def fields_of(command: str) -> list[str]:
    """Return the fields that the page names for a command."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{command}`"))
    return re.findall(r"`([a-z_]+)`", line.split("|")[2])


def test_token_is_one_document_and_nothing_else() -> None:
    done = CliRunner().invoke(token.new, ["--tenant", "acme", "--role", "admin", "--json"])

    document = json.loads(done.stdout)
    assert sorted(document) == sorted(fields_of("token new"))
    assert (document["tenant"], document["roles"], done.stderr) == ("acme", ["admin"], "")
    assert document["token"] not in document["entry"]


def test_documents_have_the_fields_of_the_page(tmp_path: Path) -> None:
    endpoint = Endpoint("unix:/f", "127.0.0.1:1", "unix:/c", "", "", 7)
    adapter = Adapter("style", AdapterKind.LORA, "sha256:1", "sd", object=ObjectReference("k", "sha256:1", 5))

    assert list(control.serving_document(endpoint, StateDirectory(tmp_path))) == fields_of("up")
    assert list(adapters._document(adapter)) == fields_of("adapters list") == fields_of("adapters add")
    assert ["file", *vars(PinnedImage("r", 1, 2, True))] == fields_of("pin")


def test_registration_prints_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ask_controller", lambda options, client, question: RegisteredModels(()))

    done = CliRunner().invoke(models.list_registered, ["--json"])

    assert done.output == '{"models": [], "cascades": []}\n'


def test_removed_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ask_controller", lambda options, client, question: None)

    done = CliRunner().invoke(models.remove, ["tiny-heavy", "--json"])

    assert json.loads(done.output) == {"removed": "tiny-heavy"}

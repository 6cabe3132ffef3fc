"""Every fenced block of the pages is run by a test, or parsed by what would read it; nothing in one is invented."""

import ast
import importlib
import json
import re
from collections.abc import Iterable

import pytest
import yaml

from tests.snippets.blocks import ROOT, Block, blocks, blocks_of, commands, of_language, shell_lines
from tests.snippets.calls import NoSuchCall, check_fields
from tests.snippets.commands import NotTypeable, check
from tests.snippets.not_run import NOT_RUN, why_not_run

SHELL, PYTHON, JSON, YAML, TEXT = "sh", "python", "json", "yaml", "text"
LANGUAGES = {SHELL, PYTHON, JSON, YAML, TEXT}
VARIABLE = re.compile(r"\bPENTIMENTO_[A-Z0-9_]+\b")
# How a line begins that somebody is to type: such a line belongs into a shell's block, where it is checked.
TYPED = re.compile(r"^\s*(?:\$ |pentimento |curl |python3? |make |docker |pip |npm )", re.MULTILINE)
# Where a variable of ours is named that is no setting: the command's own, the compositions', the examples'.
NAMING = ("docker-compose*.yml", "deploy/*.yml", "pentimento/cli/*.py", "examples/*/*", "docs/reference/settings.md")
SECTION = re.compile(r"^`python -m [^`]+`, table `\[(\w+)\]`", re.MULTILINE)


def of_blocks(found: Iterable[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", list(found), ids=str)


def faults_of(text: str) -> list[str]:
    """What cannot be typed of a shell's text, a line each."""
    found = []
    for line in shell_lines(text):
        for words in commands(line):
            try:
                check(words)
            except NotTypeable as error:
                found.append(str(error))
    return found


def test_every_block_is_in_a_language_that_is_held() -> None:
    other = [f"{block}: {block.language or 'no language'}" for block in blocks() if block.language not in LANGUAGES]

    assert len(blocks()) > 35
    assert other == []


@of_blocks(of_language(TEXT))
def test_what_is_to_be_typed_does_not_stand_as_text(block: Block) -> None:
    assert TYPED.findall(block.text) == []


@of_blocks(of_language(SHELL))
def test_commands_of_a_block_can_be_typed(block: Block) -> None:
    assert shell_lines(block.text)
    assert faults_of(block.text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("pentimento up --frobnicate", "No such option '--frobnicate'"),
        ("pentimento frobnicate", "No such command 'frobnicate'"),
        ("pentimento up --thinning sometimes", "'sometimes' is not one of"),
        ("pentimento generate 'a ring' --steps many", "'many' is not a valid integer"),
        ("true | pentimento jobs list --frobnicate", "No such option '--frobnicate'"),
        ("pentimento serve frontdoor --queue-limt 64", "--queue-limt"),
        ("pentimento serve frontdoor --queue-limit many", "--queue-limit"),
        ("pentimento bench profile DIR --frobnicate", "--frobnicate"),
        ("pentimento simulate scenarios/modm.toml --frobnicate", "pentimento.simulator has no --frobnicate"),
        ("python -m services.edge --frobnicate", "--frobnicate"),
        ("python -m services.nothing", "there is no module services.nothing"),
        ("python -m benchmarks.joint --frobnicate", "benchmarks.joint has no --frobnicate"),
        ("python scripts/nothing.py", "scripts/nothing.py is no file"),
        ("make frobnicate", "the Makefile has no frobnicate"),
        ("make demo FROBNICATE=1", "the Makefile has no FROBNICATE"),
        ("docker compose -f docker-compose.none.yml up", "docker-compose.none.yml is no file"),
        ("docker compose up frobnicator", "docker-compose.yml has no service frobnicator"),
        ("docker build -f deploy/Dockerfile --target frobnicator .", "no such target"),
        ("docker run pentimento-cli generate x --frobnicate", "No such option '--frobnicate'"),
        ("curl http://127.0.0.1/v1/jobs -d '{prompt: 1}'", "-d is no JSON"),
        ('curl http://127.0.0.1/v1/images/generations -d \'{"promt": "a"}\'', "takes no promt"),
        ("curl http://127.0.0.1/v1/images/edits -F image=@a.png -F frobnicate=1", "takes no frobnicate"),
        ("curl http://127.0.0.1/v1/frobnications", "nothing is served at /v1/frobnications"),
        ("grpcurl localhost:1 pentimento.api.image.v1.ImageService/Frobnicate", "there is no pentimento"),
        ("grpcurl localhost:1 pentimento.api.frob.v1.FrobService/Generate", "there is no pentimento"),
        ("grpcurl -d '{\"frob\": 1}' x:1 pentimento.api.image.v1.ImageService/Generate", "frob"),
        ("frobnicate --all", "no page may tell a reader to type 'frobnicate'"),
    ],
)
def test_an_invented_word_of_a_command_is_told(text: str, fault: str) -> None:
    (said,) = [one for one in faults_of(text) if "'true'" not in one]

    assert fault in said


def test_lines_and_commands_are_told_apart_as_a_shell_does() -> None:
    text = "# why\nA=1 echo 'a # b\nc' | wc -l  # counts\nls \\\n  -l > out 2>&1; cd x && echo \"$(cat f)\"\n\n"

    lines = shell_lines(text)

    assert lines == ["A=1 echo 'a # b\nc' | wc -l", 'ls   -l > out 2>&1; cd x && echo "$(cat f)"']
    assert commands(lines[0]) == [["echo", "a # b\nc"], ["wc", "-l"]]
    assert commands(lines[1])[1:] == [["cd", "x"], ["echo", "SUBSTITUTED"]]


def test_blocks_know_their_page_line_and_language() -> None:
    text = "# A page\n\n```python\nx = 1\n```\n\n```\nfree\n```\n"

    assert list(blocks_of("a.md", text)) == [Block("a.md", 3, "python", "x = 1\n"), Block("a.md", 7, "", "free\n")]


def test_every_reason_for_not_running_a_command_is_one_of_a_page() -> None:
    lines = [line for block in of_language(SHELL) for line in shell_lines(block.text)]

    assert [beginning for beginning in NOT_RUN if not any(line.startswith(beginning) for line in lines)] == []
    assert why_not_run("pentimento up --emulate FLEET") and why_not_run("pentimento generate x") is None


@of_blocks(of_language(PYTHON))
def test_names_that_a_program_imports_of_ours_exist(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pentimento"):
            home = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(home, alias.name)] == []


@of_blocks(of_language(JSON))
def test_json_is_json_and_a_request_has_fields_that_there_are(block: Block) -> None:
    shown = json.loads(block.text)

    if "prompt" in shown:
        check_fields("/v1/images/generations", set(shown))


def test_an_invented_field_is_told() -> None:
    with pytest.raises(NoSuchCall, match="takes no promt"):
        check_fields("/v1/images/generations", {"promt"})


@of_blocks(of_language(YAML))
def test_compositions_change_services_that_there_are(block: Block) -> None:
    known = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    shown = yaml.safe_load(block.text)

    assert set(shown) <= {"services", "secrets", "volumes", "networks"}
    assert set(shown["services"]) <= set(known["services"])


@pytest.fixture(scope="module")
def variables() -> set[str]:
    """Names of all variables that something reads: what every process has, each process has under its own name too."""
    named = {name for pattern in NAMING for path in ROOT.glob(pattern) for name in VARIABLE.findall(path.read_text())}
    sections = [name.upper() for name in SECTION.findall((ROOT / "docs/reference/settings.md").read_text())]
    common = "PENTIMENTO_COMMON_"
    shared = {name.removeprefix(common) for name in named if name.startswith(common)}
    assert len(sections) > 8
    return named | {f"PENTIMENTO_{section}_{name}" for section in sections for name in shared}


@of_blocks(blocks())
def test_variables_of_a_block_are_read_somewhere(block: Block, variables: set[str]) -> None:
    assert sorted(set(VARIABLE.findall(block.text)) - variables) == []

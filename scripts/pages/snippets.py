"""Parse every fenced block of the pages as its reader would; tests/e2e/test_snippets.py runs most of them."""

import ast
import importlib
import json
import re
from collections.abc import Iterator

import jsonschema_rs
import yaml

from .blocks import ROOT, blocks, commands, of_language, shell_lines
from .calls import NoSuchCall, check_fields
from .commands import NotTypeable, check
from .not_run import NOT_RUN

SHELL, PYTHON, JSON, YAML, TEXT = "sh", "python", "json", "yaml", "text"
# Its blocks of YAML are values of the chart; blocks of other pages change the compositions.
OF_THE_CHART = "docs/kubernetes.md"
LANGUAGES = {SHELL, PYTHON, JSON, YAML, TEXT}
VARIABLE = re.compile(r"\bPENTIMENTO_[A-Z0-9_]+\b")
# Beginnings of lines that a reader types: these lines belong into shell blocks, where they are checked.
TYPED = re.compile(r"^\s*(?:\$ |pentimento |curl |python3? |make |docker |pip |npm )", re.MULTILINE)
# Places that name variables outside the settings: the command's, the compositions', the examples'.
NAMING = ("docker-compose*.yml", "deploy/*.yml", "pentimento/cli/*.py", "examples/*/*", "docs/reference/settings.md")
SECTION = re.compile(r"^`python -m [^`]+`, table `\[(\w+)\]`", re.MULTILINE)


def faults_of(text: str) -> list[str]:
    """Return why commands of a shell's text could not be typed, a line for each command."""
    found = []
    for line in shell_lines(text):
        for words in commands(line):
            try:
                check(words)
            except NotTypeable as error:
                found.append(str(error))
    return found


def every_block_is_in_a_known_language() -> Iterator[str]:
    if len(blocks()) <= 35:
        yield f"the pages have {len(blocks())} blocks, more than 35 were there: has their form changed?"
    for block in blocks():
        if block.language not in LANGUAGES:
            yield f"{block}: {block.language or 'no language'} is none of {', '.join(sorted(LANGUAGES))}"


def commands_stand_in_blocks_of_a_shell() -> Iterator[str]:
    for block in of_language(TEXT):
        yield from (f"{block}: a command in a block of text: {found.strip()}" for found in TYPED.findall(block.text))


def commands_can_be_typed() -> Iterator[str]:
    for block in of_language(SHELL):
        if not shell_lines(block.text):
            yield f"{block}: no command"
        yield from (f"{block}: {fault}" for fault in faults_of(block.text))


def reasons_for_not_running_a_command_are_needed() -> Iterator[str]:
    lines = [line for block in of_language(SHELL) for line in shell_lines(block.text)]
    for beginning in NOT_RUN:
        if not any(line.startswith(beginning) for line in lines):
            yield f"scripts/pages/not_run.py: no page has a command that begins with {beginning!r}"


def programs_import_names_that_exist() -> Iterator[str]:
    for block in of_language(PYTHON):
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pentimento"):
                home = importlib.import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(home, alias.name)]
                yield from (f"{block}: {node.module} has no {name}" for name in missing)


def requests_have_fields_that_exist() -> Iterator[str]:
    for block in of_language(JSON):
        try:
            shown = json.loads(block.text)
            if "prompt" in shown:
                check_fields("/v1/images/generations", set(shown))
        except (ValueError, NoSuchCall) as error:
            yield f"{block}: {error}"


def compositions_change_services_that_exist() -> Iterator[str]:
    known = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for block in of_language(YAML):
        if block.page == OF_THE_CHART:
            continue
        shown = yaml.safe_load(block.text)
        unknown = set(shown) - {"services", "secrets", "volumes", "networks"}
        unknown |= set(shown["services"]) - set(known["services"])
        yield from (f"{block}: docker-compose.yml has no {name}" for name in sorted(unknown))


def values_fit_the_schema_of_the_chart() -> Iterator[str]:
    schema = jsonschema_rs.validator_for(json.loads((ROOT / "deploy/helm/pentimento/values.schema.json").read_text()))
    for block in of_language(YAML):
        if block.page == OF_THE_CHART:
            found = schema.iter_errors(yaml.safe_load(block.text))
            yield from (f"{block}: {error.message}" for error in found)


def variables() -> set[str]:
    """Return the names of all variables that a process or file reads. Variables of every process also have each
    process's own name."""
    named = {name for pattern in NAMING for path in ROOT.glob(pattern) for name in VARIABLE.findall(path.read_text())}
    sections = [name.upper() for name in SECTION.findall((ROOT / "docs/reference/settings.md").read_text())]
    common = "PENTIMENTO_COMMON_"
    shared = {name.removeprefix(common) for name in named if name.startswith(common)}
    return named | {f"PENTIMENTO_{section}_{name}" for section in sections for name in shared}


def variables_are_read_somewhere() -> Iterator[str]:
    known = variables()
    for block in blocks():
        unknown = sorted(set(VARIABLE.findall(block.text)) - known)
        yield from (f"{block}: nothing reads {name}" for name in unknown)


RULES = (
    every_block_is_in_a_known_language,
    commands_stand_in_blocks_of_a_shell,
    commands_can_be_typed,
    reasons_for_not_running_a_command_are_needed,
    programs_import_names_that_exist,
    requests_have_fields_that_exist,
    compositions_change_services_that_exist,
    values_fit_the_schema_of_the_chart,
    variables_are_read_somewhere,
)

"""Check that a command on a page could be typed: its program, subcommands, flags and values, with the suite's own
parsers where they apply. Nothing is run."""

import importlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import click
import yaml

from pentimento.cli import cli
from pentimento.cli.programs import SERVICES, ZOO
from pentimento.settings.declaration import SettingsError, by_name
from pentimento.settings.loading import from_flags, value_of

from .blocks import ROOT
from .calls import NoSuchCall, check_curl, check_grpcurl

LOADED = re.compile(r'load_settings\((\w+), "(\w+)"')
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
LITERAL = re.compile(r'"(--[a-z][a-z0-9-]*)"')
# A file of the reader, which is not in the repository.
NOT_HERE = ("does not exist", "No such file", "no such file")
# A placeholder for the reader's own value.
PLACEHOLDER = re.compile(r"[A-Z_]+")
# Subcommands that call a module: the module's parser checks the remaining words.
HANDED_ON = {
    ("profile",): "services.unet_worker.profiling",
    ("simulate",): "lab.simulator",
    ("journal", "renew"): "services.frontdoor.renewal",
    **dict.fromkeys((("backup",), ("restore",)), "pentimento.stores.backup"),
    **{("zoo", name): module for name, (module, _) in ZOO.items()},
}
COMPOSE = {"build", "down", "exec", "logs", "ls", "ps", "pull", "restart", "run", "stop", "up"}
# Programs of others, which check their flags themselves when they run.
OTHERS = {
    "base64",
    "buf",
    "cd",
    "cat",
    "cp",
    "eval",
    "export",
    "find",
    "go",
    "jq",
    "mkdir",
    "node",
    "npm",
    "openssl",
    "pip",
    "sed",
    "tail",
    "wait",
    "unzip",
}


class NotTypeable(Exception):
    """Name the part of a command that is not valid."""


def check(words: Sequence[str]) -> None:
    """Raise NotTypeable for a command that could not be typed."""
    program, rest = Path(words[0]).name, list(words[1:])
    checkers: dict[str, Callable[[list[str]], None]] = {
        "pentimento": check_pentimento,
        "python": check_python,
        "python3": check_python,
        "make": check_make,
        "docker": check_docker,
        "helm": check_helm,
        "kubectl": check_kubectl,
        "source": check_source,
        "bash": check_script,
        "cosign": check_cosign,
        "curl": check_curl,
        "grpcurl": check_grpcurl,
    }
    if program in checkers:
        try:
            checkers[program](rest)
        except NoSuchCall as error:
            raise NotTypeable(str(error)) from error
    elif program not in OTHERS:
        raise NotTypeable(f"no page may tell a reader to type {program!r}: name it in scripts/pages/commands.py")


def check_pentimento(words: list[str]) -> None:
    """Parse the words of `pentimento` by its own parser, down to the last subcommand."""
    try:
        path, context = parsed(cli, words)
    except click.BadParameter as error:
        if isinstance(error, click.MissingParameter) or not any(text in error.message for text in NOT_HERE):
            raise NotTypeable(error.format_message()) from error
        return
    except click.UsageError as error:
        raise NotTypeable(error.format_message()) from error
    module = SERVICES[context.params["service"]] if path == ("serve",) else HANDED_ON.get(path)
    if module is not None:
        check_module(module, [*context.params.get("flags", ()), *context.params.get("arguments", ())])


def parsed(command: click.Command, words: list[str]) -> tuple[tuple[str, ...], click.Context]:
    """Return the names of the subcommands that words lead to, and the last one's arguments."""
    path: tuple[str, ...] = ()
    context = command.make_context("pentimento", words)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None and found is not None
        context = found.make_context(name, words, parent=context)
        path, command = (*path, name), found
    return path, context


def check_python(words: list[str]) -> None:
    """Check `python -m MODULE`, `python -c PROGRAM` or `python FILE`."""
    if words[0] == "-m":
        module = words[1]
        if module.split(".")[0] in ("services", "pentimento", "lab", "benchmarks", "zoo"):
            check_module(module, words[2:])
    elif words[0] == "-c":
        compile(words[1], "a page", "exec")
    else:
        check_script(words)


def check_script(words: list[str]) -> None:
    """Check a file of the repository, from its root or an example's folder, and the flags that it names."""
    places = (ROOT, *sorted((ROOT / "examples").iterdir()))
    found = next((place / words[0] for place in places if (place / words[0]).is_file()), None)
    if found is None:
        raise NotTypeable(f"{words[0]} is no file")
    check_literals(words[1:], found.read_text(), words[0])


def check_module(module: str, flags: Sequence[str]) -> None:
    """Check the flags of `python -m module`: by its settings, or by the names in its source."""
    if module == "benchmarks.NAME":
        module = "lab.runs.measure"
    place = ROOT.joinpath(*module.split("."))
    main = place / "__main__.py" if place.is_dir() else place.with_suffix(".py")
    if not main.is_file():
        raise NotTypeable(f"there is no module {module}")
    text = main.read_text()
    loaded = LOADED.search(text)
    if loaded is None:
        check_literals(flags, sources_of(main), module)
        return
    home = re.search(rf"from (\S+) import [^\n]*\b{loaded[1]}\b", text)
    if home is None:
        raise NotTypeable(f"{module} does not say where its settings are")
    settings = by_name(getattr(importlib.import_module(home[1]), loaded[1]))
    try:
        given, _ = from_flags(loaded[2], settings, list(flags))
        for name, one in given.items():
            if not PLACEHOLDER.fullmatch(str(one.value)):
                value_of(settings[name], one)
    except SettingsError as error:
        if not any(text in str(error) for text in NOT_HERE):
            raise NotTypeable(str(error)) from error


@cache
def sources_of(main: Path) -> str:
    """Return the source of a module and of the modules of its package that it imports, where its flags are named."""
    package = main.parent if main.name == "__main__.py" else None
    files = [main, *(sorted(package.rglob("*.py")) if package else [])]
    named = re.findall(r"^from (benchmarks(?:\.\w+)*|zoo(?:\.\w+)*) import (.+)$", main.read_text(), re.MULTILINE)
    for home, names in named:
        place = ROOT.joinpath(*home.split("."))
        files += [place.with_suffix(".py"), *(place / f"{name.strip()}.py" for name in names.split(","))]
    return "\n".join(file.read_text() for file in files if file.is_file())


def check_literals(words: Sequence[str], source: str, where: str) -> None:
    """Check that the flags are in a source."""
    known = {*LITERAL.findall(source)}
    for word in words:
        flag = word.partition("=")[0]
        if FLAG.fullmatch(flag) and flag not in known:
            raise NotTypeable(f"{where} has no {flag}")


def check_make(words: list[str]) -> None:
    """Check that the Makefile has the targets and variables."""
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, is_variable, _ = word.partition("=")
        form = rf"^{name} \?=" if is_variable else rf"^{name}:"
        if not re.search(form, makefile, re.MULTILINE):
            raise NotTypeable(f"the Makefile has no {name}")


def check_source(words: list[str]) -> None:
    """Check that the sourced venv is the venv that `make` makes."""
    if words != [".venv/bin/activate"]:
        raise NotTypeable(f"{words} is not what `make` makes")


def check_docker(words: list[str]) -> None:
    """Check the files and the subcommand of `docker compose`, the target of `docker build`, and what our image runs."""
    kind, rest = words[0], words[1:]
    if kind == "compose":
        check_compose(rest)
    elif kind == "build":
        targets = re.findall(r" AS ([a-z_-]+)$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
        if rest[rest.index("--target") + 1] not in targets:
            raise NotTypeable("deploy/Dockerfile has no such target")
    elif kind == "run" and "pentimento-cli" in rest:
        check_pentimento(rest[rest.index("pentimento-cli") + 1 :])
    else:
        raise NotTypeable(f"docker {kind} is not known to scripts/pages/commands.py")


def check_helm(words: list[str]) -> None:
    """Check the subcommand of helm, its chart and its files of values."""
    if words[0] not in ("install", "upgrade", "template"):
        raise NotTypeable(f"helm {words[0]} is not known to scripts/pages/commands.py")
    files = [words[at + 1] for at, word in enumerate(words) if word == "--values"]
    missing = [name for name in (*files, "deploy/helm/pentimento/Chart.yaml") if not (ROOT / name).is_file()]
    if missing or "deploy/helm/pentimento" not in words:
        raise NotTypeable(f"helm: {missing or 'the chart'} is no file")


def check_kubectl(words: list[str]) -> None:
    """Check the subcommand of kubectl, and the Services of a release that a port is forwarded to."""
    if words[0] == "-n":
        words = words[2:]
    if words[0] not in ("apply", "create", "get", "label", "port-forward"):
        raise NotTypeable(f"kubectl {words[0]} is not known to scripts/pages/commands.py")
    services = {f"svc/pentimento-{name}" for name in ("frontdoor", "edge", "controller")}
    if words[0] == "port-forward" and words[1] not in services:
        raise NotTypeable(f"kubectl: the chart has no {words[1]}")


def check_cosign(words: list[str]) -> None:
    """Check the subcommand of cosign, and that it is about the image that the page names by its digest."""
    if words[0] not in ("sign", "attest", "verify", "verify-attestation") or words[-1] != "$image":
        raise NotTypeable(f"cosign {words[0]} of {words[-1]} is not known to scripts/pages/commands.py")


def check_compose(words: list[str]) -> None:
    """Check `docker compose [-f FILE]… [--profile NAME] SUBCOMMAND …`."""
    files, at = [], 0
    while words[at].startswith("-"):
        option, value, at = words[at], words[at + 1], at + 2
        if option == "-f":
            files.append(value)
        elif option != "--profile":
            raise NotTypeable(f"docker compose {option} is not known to scripts/pages/commands.py")
    missing = [file for file in files if not (ROOT / file).is_file()]
    if missing:
        raise NotTypeable(f"{missing[0]} is no file")
    if words[at] not in COMPOSE:
        raise NotTypeable(f"docker compose has no {words[at]}")
    known = {
        name
        for file in files or ["docker-compose.yml"]
        for name in yaml.safe_load((ROOT / file).read_text())["services"]
    }
    for word in words[at + 1 :] if words[at] in ("up", "run", "restart", "logs", "exec") else ():
        # `--scale SERVICE=COUNT`
        if not word.startswith("-") and word.partition("=")[0] not in known:
            raise NotTypeable(f"{', '.join(files) or 'docker-compose.yml'} has no service {word}")

"""The checker of the pages lists every fault, and finds invented words of commands or requests."""

from pathlib import Path

import pytest

from scripts.pages import figures, names, navigation, snippets, steps
from scripts.pages.blocks import ROOT, Block, blocks_of, commands, shell_lines
from scripts.pages.calls import NoSuchCall, check_fields
from scripts.pages.not_run import why_not_run
from scripts.pages.snippets import faults_of

FAULTS = [
    ("pentimento up --frobnicate", "No such option '--frobnicate'"),
    ("pentimento frobnicate", "No such command 'frobnicate'"),
    ("pentimento up --thinning sometimes", "'sometimes' is not one of"),
    ("pentimento generate 'a ring' --steps many", "'many' is not a valid integer"),
    ("true | pentimento jobs list --frobnicate", "No such option '--frobnicate'"),
    ("pentimento serve frontdoor --queue-limt 64", "--queue-limt"),
    ("pentimento serve frontdoor --queue-limit many", "--queue-limit"),
    ("pentimento profile cost DIR --frobnicate", "--frobnicate"),
    ("pentimento simulate scenarios/modm.toml --frobnicate", "lab.simulator has no --frobnicate"),
    ("python -m services.edge --frobnicate", "--frobnicate"),
    ("python -m services.nothing", "there is no module services.nothing"),
    ("python -m benchmarks.joint --frobnicate", "benchmarks.joint has no --frobnicate"),
    ("python scripts/nothing.py", "scripts/nothing.py is no file"),
    ("make frobnicate", "the Makefile has no frobnicate"),
    ("make demo FROBNICATE=1", "the Makefile has no FROBNICATE"),
    ("cosign sign edge:0.1.0", "cosign sign of edge:0.1.0 is not known"),
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
]


def test_faults_of_invented_word_name_it() -> None:
    said = {text: [one for one in faults_of(text) if "'true'" not in one] for text, _ in FAULTS}

    assert [text for text, fault in FAULTS if len(said[text]) != 1 or fault not in said[text][0]] == []


def test_shell_lines_and_commands_split_as_a_shell_does() -> None:
    text = "# why\nA=1 echo 'a # b\nc' | wc -l  # counts\nls \\\n  -l > out 2>&1; cd x && echo \"$(cat f)\"\n\n"

    lines = shell_lines(text)

    assert lines == ["A=1 echo 'a # b\nc' | wc -l", 'ls   -l > out 2>&1; cd x && echo "$(cat f)"']
    assert commands(lines[0]) == [["echo", "a # b\nc"], ["wc", "-l"]]
    assert commands(lines[1])[1:] == [["cd", "x"], ["echo", "SUBSTITUTED"]]


def test_blocks_of_page_have_line_and_language() -> None:
    text = "# A page\n\n```python\nx = 1\n```\n\n```\nfree\n```\n"

    assert list(blocks_of("a.md", text)) == [Block("a.md", 3, "python", "x = 1\n"), Block("a.md", 7, "", "free\n")]


def test_why_not_run_begins_with_a_listed_command() -> None:
    assert why_not_run("pentimento up --emulate FLEET") and why_not_run("pentimento generate x") is None


def test_check_fields_invented_field_is_refused() -> None:
    with pytest.raises(NoSuchCall, match="takes no promt"):
        check_fields("/v1/images/generations", {"promt"})


PAGE = """# A page
`pentimento/nothing.py`, `pentimento.nothing.at_all`, `NO_SUCH_REASON`, pentimento_worker_no_such_total,
[one](nothing.md), [two](#nowhere)
"""


def test_rules_of_names_list_every_fault_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "page-that-is-not-there.md"
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: PAGE if path == page else read(path, *rest))
    monkeypatch.setattr(names, "GUIDES", (page,))
    monkeypatch.setattr(names, "PAGES", (page,))
    rules = names.RULES[:5]

    found = [fault.rpartition(": ")[2] for rule in rules for fault in rule()]

    assert found == [
        "nothing.md",
        "#nowhere",
        "pentimento/nothing.py",
        "pentimento.nothing.at_all",
        "pentimento_worker_no_such_total",
        "NO_SUCH_REASON",
    ]


def test_figures_equal_a_result_within_half_a_digit() -> None:
    assert abs(figures.value("1,234.5") - 1234.54) <= figures.half_a_digit("1,234.5")
    assert abs(figures.value("−0.30") - -0.306) > figures.half_a_digit("−0.30")


def test_every_module_of_rules_has_some() -> None:
    assert all(module.RULES for module in (figures, names, navigation, snippets, steps))

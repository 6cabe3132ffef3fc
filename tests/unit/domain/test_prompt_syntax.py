"""Parse prompts with weights, and reject wrong syntax."""

import re

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt, plain_prompt
from tests.support.refusals import wrong_refusals

Weighted = list[tuple[str, float]]
A1111: dict[str, list[Weighted]] = {
    "": [[]],
    "a cat, (close: up)": [[("a cat, ", 1.0), ("close: up", 1.1)]],
    "a (red) [blue] (green:1.3)": [[("a ", 1.0), ("red ", 1.1), ("blue ", 1 / 1.1), ("green", 1.3)]],
    "((a) b:2)c": [[("a", 2.2), (" b", 2.0), ("c", 1.0)]],
    "[(a: b:-0.5)]": [[("a: b", -0.5 / 1.1)]],
    r"a \(b\) \[c\] \\ (d\):1.5) e\f:": [[(r"a (b) [c] \ ", 1.0), ("d)", 1.5), (r" e\f:", 1.0)]],
    "a BREAK (b BREAK c:1.5) BREAKS BREAK": [[("a", 1.0)], [("b", 1.5)], [("c", 1.5), (" BREAKS", 1.0)]],
    "BREAK a BREAK BREAK b": [[], [("a", 1.0)], [], [("b", 1.0)]],
}
COMPEL: dict[str, list[Weighted]] = {
    "a red++ ball--, sci-fi": [[("a ", 1.0), ("red ", 1.21), ("ball", 0.81), (", sci-fi", 1.0)]],
    "(a (dark)0.5 dot)+++ end.": [[("a ", 1.331), ("dark ", 0.6655), ("dot ", 1.331), ("end.", 1.0)]],
    '(red)1.5 "2 cats"1.5, (plain)(text)': [[("red 2 cats", 1.5), (", plain text", 1.0)]],
    r"a \(b\) c\+ - 3.5 C\++": [[(r"a (b) c+ - 3.5 ", 1.0), ("C+", 1.1)]],
    "(word)nano (a)2nd": [[("word nano a 2nd", 1.0)]],
}
PROMPTS = [*((PromptSyntax.A1111, *one) for one in A1111.items())]
PROMPTS += [(PromptSyntax.COMPEL, *one) for one in COMPEL.items()]
REFUSED: dict[str, str] = {
    "a (red": "'(' is not closed",
    "a [red": "'[' is not closed",
    "a red)": "')' closes no '('",
    "(a [red)]": "')' closes no '('",
    "(a:nan)": "must have weights between -10 and 10, got nan",
    "(a:-inf)": "must have weights between -10 and 10, got -inf",
    "(a:1e9)": "must have weights between -10 and 10, got 1e+09",
    "(((a:9)))": "must have weights between -10 and 10, got 10.89",
    "(" * 33 + ")" * 33: "must have at most 32 brackets in each other",
    "BREAK a " * 9: "must have at most 8 chunks of tokens, and BREAK begins 10",
    "a [cat:dog:0.5]": "must not have",
    "a [cat|dog]": "must not have",
}


def test_parse_prompt_gives_weights_by_section() -> None:
    for syntax, text, sections in PROMPTS:
        parsed = parse_prompt(text, syntax).sections

        found = [[(fragment.text, fragment.weight) for fragment in section] for section in parsed]
        assert [[part for part, _ in one] for one in found] == [[part for part, _ in one] for one in sections], text
        weights = [[weight for one in each for _, weight in one] for each in (found, sections)]
        assert weights[0] == pytest.approx(weights[1]), text


REFUSED_COMPEL = {
    "a (red": "'(' is not closed",
    'a "red': "'\"' is not closed",
    '("a)"': "')' closes no '('",
    "(a)nan": "must have weights between -10 and 10, got nan",
    "(a)1e9": "must have weights between -10 and 10, got 1e+09",
    "a- b " * 33: "must have at most 32 texts with weights below 1, got 33",
    "a" + "+" * 10_000: "must have weights between -10 and 10, got ",
    '("a", "b").blend(1, 1)': "must not have .blend(…)",
}
FAULTS = [*((PromptSyntax.A1111, *one) for one in REFUSED.items())]
FAULTS += [(PromptSyntax.COMPEL, *one) for one in REFUSED_COMPEL.items()]


def test_parse_prompt_names_field_and_fault() -> None:
    rows = [(text, syntax, "negative_prompt", re.escape(f"negative_prompt: {said}")) for syntax, text, said in FAULTS]

    assert wrong_refusals(InvalidArgument, parse_prompt, rows) == []


def test_plain_prompt_has_no_syntax() -> None:
    text = r"a (red:1.3) \(small\) [circle] BREAK on black"

    assert plain_prompt(text, PromptSyntax.A1111) == "a red (small) circle on black"
    assert plain_prompt(text, None) == text

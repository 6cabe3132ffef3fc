"""Options of all commands reject values that are no numbers."""

from collections.abc import Iterator

import click
import pytest

from pentimento.cli import cli

pytest.importorskip("lab.commands", reason="walks commands of the lab too")
NO_NUMBERS = ("nan", "inf", "-inf", "1e999", "x")


def options(command: click.Command, path: str = "pentimento") -> Iterator[tuple[str, click.Parameter]]:
    for option in command.params:
        yield f"{path} {option.opts[0]}", option
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from options(part, f"{path} {name}")


def taken(option: click.Parameter, value: str) -> object:
    try:
        return option.type.convert(value, option, None)
    except click.BadParameter:
        return None


FLOATS = {name: option for name, option in options(cli) if isinstance(taken(option, "0.5"), float)}


def test_the_options_are_found() -> None:
    assert {"pentimento up --slo-s", "pentimento bench load --rate", "pentimento tenant set --weight"} <= set(FLOATS)


def test_options_take_finite_numbers_alone() -> None:
    wrong = [f"{name} {value}" for name in FLOATS for value in NO_NUMBERS if taken(FLOATS[name], value) is not None]

    assert wrong == []


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan"])
def test_threshold_out_of_bounds_is_rejected(value: str) -> None:
    threshold = FLOATS["pentimento up --confidence-threshold"]

    assert [taken(threshold, each) for each in ("0", "0.25", "1")] == [0.0, 0.25, 1.0]
    assert taken(threshold, value) is None

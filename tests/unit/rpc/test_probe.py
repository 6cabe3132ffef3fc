"""Test the health probe's answers, for any kind of server."""

import runpy
import warnings

import pytest

from pentimento.rpc import probe


@pytest.mark.parametrize("arguments", [[], ["one", "two", "three"]])
def test_another_number_of_addresses_is_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m pentimento.rpc.probe ADDRESS [SERVICE]\n"


def test_as_a_program_it_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["probe.py", "one", "two", "too many"])

    with pytest.raises(SystemExit) as ended, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it is loaded here already
        runpy.run_module("pentimento.rpc.probe", run_name="__main__")

    assert (ended.value.code, capsys.readouterr().err.split()[0]) == (2, "usage:")

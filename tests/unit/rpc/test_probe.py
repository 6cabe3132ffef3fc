"""The health probe's answers, whatever the server is."""

import pytest

from pentimento.rpc import probe


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [("SERVING", 0, ""), ("NOT_SERVING", 1, "unix:/s: NOT_SERVING\n"), ("UNAVAILABLE", 1, "unix:/s: UNAVAILABLE\n")],
)
def test_only_a_process_that_serves_is_healthy(
    status: str, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(probe, "status_of", lambda address: asked.append(address) or status)

    assert probe.main(["unix:/s"]) == code
    assert (asked, capsys.readouterr().err) == (["unix:/s"], told)


@pytest.mark.parametrize("arguments", [[], ["one", "two"]])
def test_another_number_of_addresses_is_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m pentimento.rpc.probe ADDRESS\n"

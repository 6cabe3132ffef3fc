import json
import random

import pytest

from lab.simulator.recorded_effects import read_recording, replay
from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.recording import header_line, step_line
from pentimento.domain.errors import InvalidArgument
from tests.unit.dataplane.test_random_walks import Walk
from tests.unit.dataplane.world import World


def recorded_walk(seed: int) -> list[str]:
    """Return the lines of one frontdoor's life in a random walk."""
    walk = Walk(random.Random(seed))
    lines: list[str] = []

    def record(world: World) -> None:
        dataplane = world.dataplane
        lines[:] = [header_line(dataplane.state.epoch, dataplane.state.settings)]
        answer = dataplane.on_event

        def on_event(now: float, event: events.Event) -> list[effects.Effect]:
            answered = answer(now, event)
            lines.append(step_line(now, event, answered))
            return answered

        dataplane.on_event = on_event  # type: ignore[method-assign]

    walk.world.on_start = record
    walk.world.start_frontdoor()
    walk.run()
    return lines


def test_replay_gives_the_same_effects() -> None:
    for seed in range(5):
        lines = recorded_walk(seed)
        dataplane, steps = read_recording(lines, "recording")
        assert replay(dataplane, steps) == (len(lines) - 1, None)


def test_a_replay_that_answers_something_else_says_where() -> None:
    lines = recorded_walk(1)
    index = next(number for number, line in enumerate(lines) if '"PersistAccepted"' in line)
    lines[index] = lines[index].replace('"PersistAccepted"', '"Announce"')

    dataplane, steps = read_recording(lines, "recording")
    count, divergence = replay(dataplane, steps)

    assert divergence is not None
    assert (count, divergence.step.line) == (index - 1, index + 1)


BAD_LINES = (
    ("{", "must be JSON"),
    ("[1]", "must be"),
    ('[1.0,["Unheard",{}],[]]', "known kind"),
    ('[1.0,["AcceptPersisted",{}],[]]', "request_id: is missing"),
    ('[1.0,["AcceptPersisted",{"request_id":3}],[]]', "file.jsonl:2: AcceptPersisted.request_id"),
    ('[1.0,["AcceptPersisted",{"request_id":"r","more":1}],[]]', "more"),
    ('["x",["TimePassed",{}],[]]', "time"),
    ('[1.0,["ProfilesReceived",{"profiles":[{"name":"m","seconds_per_work":[[1]]}]}],[]]', "2 entries"),
    ('[1.0,["TimePassed",{}],[["Announce",{}]]]', "file.jsonl:2: effects[0]: Announce.request_id"),
    ('[1.0,["TimePassed",{}],[["Announce",{"request_id":"r"}],["Announce",{}]]]', "effects[1]"),
    ('[1.0,["TimePassed",{}],7]', "must be"),
    ('[1.0,["AttemptPersisted",{"request_id":"r","fencing_token":1.5,"won":true}],[]]', "fencing_token"),
    ('[1.0,["AttemptFailed",{"request_id":"r","fencing_token":1,"kind":"bored"}],[]]', "kind"),
)


def test_recording_names_its_bad_line() -> None:
    header = header_line(1, World().settings)
    for line, words in BAD_LINES:
        with pytest.raises(InvalidArgument) as raised:
            dataplane, steps = read_recording([header, line], "file.jsonl")
            replay(dataplane, steps)
        assert "file.jsonl:2" in str(raised.value) and words in str(raised.value), line

    first = json.dumps({"format": "pentimento-effects", "epoch": "x", "settings": {}})
    for lines, where in (
        ([], "file:1"),
        ([""], "file:1"),
        (["[]"], "file:1"),
        ([json.dumps({"format": "other"})], "file:1"),
        ([first], "file:1: epoch"),
        ([first.replace("{}", "7")], "file:1: settings"),
    ):
        with pytest.raises(InvalidArgument, match=where):
            read_recording(lines, "file")


def test_a_recording_is_read_by_later_builds() -> None:
    """Names and values in it are a format."""
    header = json.loads(header_line(7, DataplaneSettings(queue_limit=3)))
    line = step_line(1.5, events.AcceptPersisted("r"), [effects.Announce("r")])

    assert (header["format"], header["epoch"], header["settings"]["queue_limit"]) == ("pentimento-effects", 7, 3)
    assert line == '[1.5,["AcceptPersisted",{"request_id":"r"}],[["Announce",{"request_id":"r"}]]]\n'
    assert [end.value for end in effects.End] == ["failed", "cancelled", "expired", "dropped"]
    assert {kind.value for kind in events.FailureKind} == {
        "worker_lost",
        "not_held",
        "no_credit",
        "gone",
        "deadline",
        "stopped",
        "fatal",
    }

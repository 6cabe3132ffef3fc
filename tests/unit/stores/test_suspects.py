"""Decide when to abandon an object after bad readings, and when to read it again."""

from dataclasses import dataclass

from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.suspects import Suspects

OBJECT = ObjectReference("cache/one", "sha256:" + "0" * 64, 1)


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


READINGS: list[tuple[str, bool]] = [
    ("bad 0", False),
    ("bad 0, bad 1, bad 2, bad 3, bad 8", False),
    ("bad 0, bad 3600, bad 7199", False),
    ("bad 0, bad 3600, bad 7200", True),
    ("bad 0, bad 9000, bad 18000", True),
    ("bad 0, bad 3600, good 5000, bad 7200", False),
    ("bad 0, bad 3600, good 5000, bad 7200, bad 10800, bad 14400", True),
]


def test_object_is_abandoned_after_separate_bad_readings() -> None:
    for readings, given_up in READINGS:
        time = Time()
        suspects = Suspects(3600.0, time)
        verdict = False

        for reading in readings.split(", "):
            kind, at = reading.split(" ")
            time.now = float(at)
            if kind == "bad":
                verdict = suspects.note_bad(OBJECT)
            else:
                suspects.note_good(OBJECT.key)

        assert verdict is given_up


def test_suspect_is_due_soon_then_less_often() -> None:
    time = Time()
    suspects = Suspects(3600.0, time)
    suspects.note_bad(OBJECT, "entry")

    due = []
    for second in range(200):
        time.now = float(second)
        if suspects.due(8):
            due.append(second)
            suspects.note_bad(OBJECT, "entry")

    assert due == [5, 15, 35, 75, 155]


def test_holder_is_named_until_good_reading() -> None:
    suspects = Suspects(3600.0)

    suspects.note_bad(OBJECT, "entry")

    assert (set(suspects.holders), len(suspects), OBJECT.key in suspects) == ({"entry"}, 1, True)
    suspects.note_good(OBJECT.key)
    assert (set(suspects.holders), len(suspects), OBJECT.key in suspects) == (set(), 0, False)

"""A world with performers that break down: the dataplane receives a failure in place of an answer."""

from collections import Counter

from pentimento.dataplane import effects, events
from pentimento.dataplane.endings import MAX_END_RETRIES, failure_of
from tests.unit.dataplane.world import World

# The world keeps its books by them: they break down once they are carried out.
_CARRIED_OUT = (effects.Reject, effects.ReleaseGrant, effects.CommitCacheEntries)
_ANSWERS = (effects.Reject, effects.Deliver, effects.DeliverEnd)


class BreakingWorld(World):
    """`break_next`: the next effect breaks down, "before" or "after" it is carried out; "" for none."""

    def __init__(self, **settings: object) -> None:
        self.break_next = ""
        self._broken_ends: Counter[str] = Counter()
        self._broken_answers: set[str] = set()
        super().__init__(**settings)

    def settle(self) -> None:
        self.break_next = ""
        super().settle()

    def _interpret(self, effect: effects.Effect) -> None:
        if self.break_next and self._may_break(effect):
            self._break(effect)
        elif not isinstance(effect, effects.DeliverRecorded) or self._needs_answer(effect.request_id):
            super()._interpret(effect)

    def _may_break(self, effect: effects.Effect) -> bool:
        """Return whether the effect may break down; the journalling of an end breaks no more often than it is
        retried."""
        return not isinstance(effect, effects.PersistEnd) or self._broken_ends[effect.request_id] < MAX_END_RETRIES

    def _break(self, effect: effects.Effect) -> None:
        """Report only the failure of the effect, carried out or not."""
        when, self.break_next = self.break_next, ""
        if when == "after" or isinstance(effect, _CARRIED_OUT) or self._would_run_on(effect):
            said_count = len(self.replies)
            self._interpret(effect)
            if not isinstance(effect, effects.StopAttempt):  # the attempt itself answers a stop
                del self.replies[said_count:]
        if isinstance(effect, effects.PersistAttempt | effects.Attach):
            self.granted.add((effect.request_id, effect.fencing_token))
        if isinstance(effect, effects.PersistEnd):
            self._broken_ends[effect.request_id] += 1
        if isinstance(effect, _ANSWERS):
            self._broken_answers.add(effect.request_id)
        self.replies.append(failure_of(effect))

    def _would_run_on(self, effect: effects.Effect) -> bool:
        """Return whether this stops an attempt without a credit: its worker would have refused others, which this world
        forbids."""
        if not isinstance(effect, effects.StopAttempt):
            return False
        return (effect.request_id, effect.fencing_token) not in self.dataplane.state.attempt_workers

    def _needs_answer(self, request_id: str) -> bool:
        """Return whether the journal has the request and its client has no answer from before the failure."""
        return request_id in self.rows and not (request_id in self._broken_answers and request_id in self.answers)

    def _end(self, request_id: str, end: str) -> None:
        if request_id in self.rows:
            super()._end(request_id, end)
        else:
            # Its acceptance broke down before it was carried out.
            self.replies.append(events.EndPersisted(request_id, False))

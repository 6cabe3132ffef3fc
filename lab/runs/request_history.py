"""Check histories of requests: what a journal committed, and what clients received under the same idempotency key.

| operation | value | recorded by |
| --- | --- | --- |
| accept | request id | the journal |
| start | fencing token of the attempt | the journal |
| commit | (fencing token, digest of the image) | the journal |
| end | terminal state without an image | the journal |
| accepted | request id | a client |
| result | digest of the image | a client |
| state | state of the request, as of a query or a cancellation | a client |
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lab.runs.histories import Operation, is_linearisable
from pentimento.domain.jobs import RequestState


@dataclass(frozen=True)
class JournalEvent:
    """Describe one committed change of a request. `at_s`: within its transaction; `value` as in the table above."""

    key: str
    request_id: str
    name: str
    value: str | int | tuple[int, str]
    at_s: float


@dataclass(frozen=True)
class KeyState:
    """Hold the durable state of an idempotency key; `request_id` is empty before the acceptance."""

    request_id: str = ""
    token: int = 0
    state: RequestState = RequestState.ACCEPTED
    digest: str = ""


def step_of_key(before: KeyState, operation: Operation) -> KeyState | None:
    """Return the state after an operation, or None if it is impossible: one request for a key, attempts with growing
    tokens, one end, an image only of the newest attempt, and answers only of durable states."""
    is_open = bool(before.request_id) and not before.state.terminal
    match operation.name, operation.value:
        case "accept", str(request_id):
            return KeyState(request_id) if not before.request_id else None
        case "start", int(token):
            return replace(before, token=token) if is_open and token > before.token else None
        case "commit", (int(token), str(digest)):
            completed = replace(before, state=RequestState.COMPLETED, digest=digest)
            return completed if is_open and token == before.token else None
        case "end", str(state):
            return replace(before, state=RequestState(state)) if is_open else None
        case "accepted", request_id:
            return before if before.request_id == request_id else None
        case "result", digest:
            return before if before.state is RequestState.COMPLETED and before.digest == digest else None
        case "state", str(state):
            seen = RequestState(state)
            is_same = before.state is seen if seen.terminal else is_open
            return before if is_same else None
    raise ValueError(f"not an operation of a request: {operation}")


def committed(events: Iterable[JournalEvent], read_at_s: float) -> dict[str, list[Operation]]:
    """Return the events that a journal had at `read_at_s` as operations by key. Changes of one row are committed in
    order: each returned before the next one was made."""
    of_requests: dict[str, list[JournalEvent]] = defaultdict(list)
    for event in events:
        of_requests[event.request_id].append(event)
    found: dict[str, list[Operation]] = defaultdict(list)
    for of_one in of_requests.values():
        ends_s = [*(math.nextafter(event.at_s, 0.0) for event in of_one[1:]), read_at_s]
        for event, end_s in zip(of_one, ends_s, strict=True):
            # Clocks of milliseconds give two changes the same time.
            found[event.key].append(Operation(event.name, event.value, event.at_s, max(end_s, event.at_s)))
    return found


def broken_keys(
    events: Iterable[JournalEvent], read_at_s: float, received: Mapping[str, Sequence[Operation]]
) -> list[str]:
    """Return the keys with a history that is not linearisable, by the events that a journal had at `read_at_s`. Keys
    are independent objects, so that the whole history is linearisable if each is (Herlihy and Wing 1990)."""
    durable = committed(events, read_at_s)
    keys = sorted(durable.keys() | received.keys())
    return [
        key
        for key in keys
        if not is_linearisable([*durable.get(key, ()), *received.get(key, ())], KeyState(), step_of_key)
    ]

"""Events of a stream, as the console's own module reads them in Node.js."""

import json
from typing import Any

import pytest

from services.edge.console.pages import STATIC
from tests.unit.edge.console_modules import needs_node, printed

pytestmark = needs_node


def heard(pieces: str, found: str = "found") -> Any:
    """Return an expression of the events in a stream of pieces, both in JavaScript."""
    return printed(f"""
        globalThis.window = {{ sessionStorage: {{ getItem: () => null }} }};
        globalThis.fetch = async () => new Response(new ReadableStream({{
            start(stream) {{
                for (const piece of {pieces}) stream.enqueue(new TextEncoder().encode(piece));
                stream.close();
            }},
        }}));
        const {{ events }} = await import({json.dumps((STATIC / "api.js").as_uri())});
        const found = [];
        for await (const event of events("generate", {{}})) found.push(event);
        console.log(JSON.stringify({found}));
    """)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_wherever_their_stream_is_cut(size: int) -> None:
    accepted, progress = 'event: accepted\ndata: {"n": 1}\n\n', 'event: progress\ndata: {"n":\ndata:  2}\n\n'
    stream = f'{accepted}: beat\n\n{progress}data: {{"n": 3}}\n\nevent: cut off'
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]

    assert heard(json.dumps(pieces)) == [
        {"event": "accepted", "data": {"n": 1}},
        {"event": "progress", "data": {"n": 2}},
        {"event": "message", "data": {"n": 3}},
    ]


def test_image_of_many_pieces_is_searched_once() -> None:
    """A search of all earlier pieces for each new one would block the tab for minutes."""
    pieces = '["data: \\"", ...Array(8192).fill("A".repeat(4096)), "\\"\\n\\n"]'

    assert heard(pieces, "found.map(({ data }) => data.length)") == [8192 * 4096]

"""List every attack in playing order. The last ones may leave the suite unable to continue."""

from collections.abc import Awaitable, Callable

from benchmarks.attacks import calls, connections, pictures
from benchmarks.attacks.target import Answers, AttackTarget

Attack = Callable[[AttackTarget], Awaitable[Answers]]

_IN_ORDER: tuple[Attack, ...] = (
    connections.gzip_bombs,
    connections.gzip_bombs_with_a_token,
    connections.unfinished_messages,
    connections.header_only_streams,
    connections.rapid_resets,
    connections.huge_metadata,
    connections.endless_headers,
    connections.ping_flood,
    connections.silent_connections,
    connections.silent_http_connections,
    calls.every_rpc_by_every_role,
    calls.pickles,
    calls.malformed_messages,
    calls.deep_nesting,
    calls.senseless_fields,
    calls.burst_of_1500,
    calls.burst_of_10000,
    calls.one_key,
    pictures.image_bombs,
    pictures.image_bombs_to_the_embedder,
    pictures.large_images,
    calls.largest_epoch,
)
ATTACKS: dict[str, Attack] = {attack.__name__: attack for attack in _IN_ORDER}

"""What stands between the connections of strangers and gRPC: each connection's calls go on by turns.

gRPC hands calls over in the order in which they came, whoever sent them. Whoever comes behind ten thousand calls of
others waits for all of them, and to tell the others to wait costs nearly as much as to serve them. So calls wait in
their connection until it is its turn, where they cost nothing and only their own connection waits.
"""

from pentimento.rpc.relay.call_turns import CallTurns
from pentimento.rpc.relay.listener import Relay, is_relayed, relayed_peer

__all__ = ["CallTurns", "Relay", "is_relayed", "relayed_peer"]

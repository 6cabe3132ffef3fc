"""Relay the connections of strangers to gRPC, so that each connection's calls alternate with those of others.

gRPC delivers calls in arrival order, regardless of sender. A caller after ten thousand calls of others waits for all of
those, and to reject the others costs nearly as much as to serve them. So calls wait in their connection for its turn,
at no cost, and delay only their own connection.
"""

from pentimento.rpc.relay.call_turns import CallTurns
from pentimento.rpc.relay.listener import Relay, is_relayed, relayed_peer

__all__ = ["CallTurns", "Relay", "is_relayed", "relayed_peer"]

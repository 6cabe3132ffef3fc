"""Name the metadata that the kit reads and writes. gRPC requires lower case."""

AUTHORIZATION = "authorization"
BEARER = "Bearer "
REQUEST_ID = "x-request-id"
# Binary, as its suffix says; where every gRPC library looks for a google.rpc.Status.
STATUS_DETAILS = "grpc-status-details-bin"

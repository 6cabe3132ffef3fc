"""Metrics of the HTTP edge, in addition to the RPC metrics of every process. `route` is a path of the API document."""

from pentimento.telemetry import counter, gauge, histogram

HTTP_REQUESTS = counter("pentimento_edge_requests_total", "Answered HTTP requests.", ["route", "status"])
HTTP_SECONDS = histogram(
    "pentimento_edge_request_seconds", "Time from a request's head to the end of its answer.", ["route"]
)
CONNECTIONS = gauge("pentimento_edge_connections_count", "Open HTTP connections.")
CUT_OFF = counter(
    "pentimento_edge_cut_off_total",
    "Connections closed by this process, by limit: connections, header_bytes, "
    "header_timeout, body_timeout, write_timeout, unread_bytes, pipeline, places (a slow "
    "reader of a file while others wait).",
    ["bound"],
)
CLIENTS_LEFT = counter("pentimento_edge_clients_left_total", "Requests whose client disconnected before the answer.")
BODIES = gauge("pentimento_edge_bodies_bytes", "Request bodies in memory.")

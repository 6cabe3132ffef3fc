"""What the HTTP edge counts, beside the RPC metrics that every process has. `route` is a path of the API document."""

from pentimento.telemetry import counter, gauge, histogram

HTTP_REQUESTS = counter("pentimento_edge_requests_total", "HTTP requests answered.", ["route", "status"])
HTTP_SECONDS = histogram(
    "pentimento_edge_request_seconds", "From the head of a request to the end of its answer.", ["route"]
)
CONNECTIONS = gauge("pentimento_edge_connections_count", "HTTP connections that are open.")
CUT_OFF = counter(
    "pentimento_edge_cut_off_total",
    "Connections ended by this process, by what bound they met: connections, header_bytes, header_timeout,"
    " body_timeout, write_timeout, unread_bytes, pipeline, places (a slow reader of a file, whose place others wait"
    " for).",
    ["bound"],
)
CLIENTS_LEFT = counter("pentimento_edge_clients_left_total", "Requests whose client left before it had its answer.")
BODIES = gauge("pentimento_edge_bodies_bytes", "Bodies of requests that are held now.")

"""Find nearest neighbours of embeddings: `open_vectors(url)` gives an embedded or a remote index behind one
interface."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pentimento.domain.embedding import Space
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.vectors.index import VectorIndex, VectorMatch, VectorPoint, VectorQuery
from pentimento.stores.vectors.index_building import IndexBuilding

__all__ = ["IndexBuilding", "Space", "VectorIndex", "VectorMatch", "VectorPoint", "VectorQuery", "open_vectors"]


def open_vectors(url: str, building: IndexBuilding | None = None) -> VectorIndex:
    """Return the index at `edge:///directory` or `qdrant://host:port`; raises InvalidArgument for any other url.

    Options of Qdrant are the query: `collection`, `tls=true`, `api_key_file`, `quantised=false`, and on a cluster
    `shard_groups` (groups of tenants, a shard key each) and `replicas`. `building` says when the embedded index is
    built again; a server has its own optimiser.
    """
    try:
        return _open_vectors(url, building)
    except ValueError as error:
        # The parsers of urls and ports raise no other error.
        raise InvalidArgument.of("index_url", f"must be one that can be opened, got {url!r}: {error}") from None


def _open_vectors(url: str, building: IndexBuilding | None) -> VectorIndex:
    parts = urlsplit(url)
    if parts.scheme == "edge" and parts.path and not (parts.netloc or parts.query or parts.fragment):
        from pentimento.stores.vectors.edge import EdgeVectorIndex

        return EdgeVectorIndex(Path(unquote(parts.path)), building=building or IndexBuilding())
    if parts.scheme == "qdrant" and parts.hostname and not (parts.path.strip("/") or parts.fragment):
        from pentimento.stores.vectors.qdrant import QdrantVectorIndex

        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        return QdrantVectorIndex.from_options(parts.hostname, parts.port or 6334, options)
    raise InvalidArgument.of("index_url", f"must be edge:///directory or qdrant://host:port, got {url!r}")

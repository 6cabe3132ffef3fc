"""The console: pages under `/`, its data under `/console/data`."""

from starlette.routing import BaseRoute

from services.edge.console.data import data_routes
from services.edge.console.pages import page_routes
from services.edge.parts import EdgeParts


def console_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of pages and data; the API's routes come first."""
    return [*page_routes(), *data_routes(parts)]

"""Check the calls that a page shows: addresses and fields of HTTP, methods and messages of gRPC."""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from urllib.parse import urlsplit

from google.protobuf import descriptor_pool
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from services.edge.api.document import api_document

# Paths that take fields, and their schemas in the API document.
BODIES = {
    "/v1/images/generations": "GenerationRequest",
    "/v1/images/edits": "EditRequest",
    "/v1/jobs": "GenerationRequest",
}
# Fields of jobs in addition to those of images, and a form's other name for its image.
BESIDES = {"/v1/jobs": {"webhook"}, "/v1/images/edits": {"image[]"}}
OTHER_PATHS = re.compile(
    r"/(health|ready|metrics|openapi\.json|v1/models(/[^/]+)?|v1/jobs/[^/]+(/(events|result|url|cancel))?)?"
)


class NoSuchCall(Exception):
    """Name the part of a call that does not exist."""


@cache
def fields_of(schema: str) -> frozenset[str]:
    """Return the names of a schema's own fields in the API document."""
    return frozenset(api_document()["components"]["schemas"][schema]["properties"])


def check_curl(words: Sequence[str]) -> None:
    """Raise NoSuchCall for an address of this suite, or a field in a call's body, that does not exist."""
    for url in (word for word in words if word.startswith("http")):
        path = urlsplit(url).path
        if path not in BODIES:
            if OTHER_PATHS.fullmatch(path) is None:
                raise NoSuchCall(f"nothing is served at {path}")
            return
        names = {words[at + 1].partition("=")[0] for at, word in enumerate(words) if word == "-F"}
        body = json_of(words)
        check_fields(path, {*names, *(body if isinstance(body, Mapping) else {})})


def check_fields(path: str, names: set[str]) -> None:
    """Raise NoSuchCall for fields that a path does not take."""
    unknown = names - fields_of(BODIES[path]) - BESIDES.get(path, set())
    if unknown:
        raise NoSuchCall(f"{path} takes no {', '.join(sorted(unknown))}")


def check_grpcurl(words: Sequence[str]) -> None:
    """Raise NoSuchCall for a method that does not exist, or with a message of another type."""
    name, _, method = words[-1].rpartition("/")
    package, _, service = name.rpartition(".")
    try:
        importlib.import_module(f"{package}.{snake(service)}_pb2")
        takes = descriptor_pool.Default().FindServiceByName(name).methods_by_name[method].input_type
    except (ImportError, KeyError) as error:
        raise NoSuchCall(f"there is no {words[-1]}") from error
    try:
        ParseDict(json_of(words) or {}, GetMessageClass(takes)())
    except ParseError as error:
        raise NoSuchCall(f"{words[-1]}: {error}") from error


def snake(name: str) -> str:
    """Return a service's name as its file has it."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def json_of(words: Sequence[str]) -> object:
    """Return the JSON that is sent with `-d`, or None without one. Raise NoSuchCall for invalid JSON."""
    if "-d" not in words:
        return None
    try:
        found: object = json.loads(words[list(words).index("-d") + 1])
    except ValueError as error:
        raise NoSuchCall(f"-d is no JSON: {error}") from error
    return found

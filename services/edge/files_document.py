"""`/v1/files/` in the API document. Pure."""

from services.edge.api_operations import error_responses, path_parameter, query_parameter
from services.edge.api_schemas import Schema

KINDS = ("image/png", "image/jpeg", "image/webp")


def file_paths() -> dict[str, Schema]:
    """Return the path of files. Clients receive whole URLs, so the parameters are only described."""
    image = {"description": "the image", "content": {kind: {"schema": {"type": "string"}} for kind in KINDS}}
    call = {
        "summary": "Return an image by its signed URL.",
        "security": [{}],
        "parameters": [
            path_parameter("key"),
            query_parameter("expires", "Unix seconds", type="string"),
            query_parameter("type", "media type", type="string"),
            query_parameter("size", "bytes", type="string"),
            query_parameter("digest", "SHA-256, in hexadecimal", type="string"),
            query_parameter("signature", "signature of all of these", type="string"),
        ],
        "responses": {"200": image, **error_responses({403, 404, 500, 503})},
    }
    return {"/v1/files/{key}": {"get": call}}

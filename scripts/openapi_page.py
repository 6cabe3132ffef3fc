"""Write a page for an API document (OpenAPI 3.1): each call with its fields and answers, then each schema."""

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
SIMPLE = {"string": "text", "boolean": "true or false", "null": "null", "object": "object"}
# Bounds of the integer type itself tell a reader nothing.
WIDE = 2**63 - 1


def http_page(head: str, document: Schema) -> str:
    """Return the page of a whole document; `head` is put before it."""
    info = document["info"]
    lines = [
        head,
        "# HTTP API",
        "",
        f"{info['description']} The same as OpenAPI is served at `/openapi.json`. "
        "[The edge's page](../../services/edge/README.md) compares it with OpenAI's own, and has the bounds.",
        "",
        "| call | |",
        "| --- | --- |",
    ]
    calls = list(calls_of(document))
    lines += [
        f"| [`{method.upper()} {path}`](#{anchor(title(path, method))}) | {cell(call['summary'])} |"
        for path, method, call in calls
    ]
    lines += ["", "# Calls over HTTP", ""]
    for path, method, call in calls:
        lines += call_lines(path, method, call)
    lines += [*error_lines(calls), "# Schemas", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"## {name}", "", *schema_lines(schema)]
    return "\n".join(lines).rstrip() + "\n"


def calls_of(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Yield every call: path, method and its description; a path's parameters are added to its calls."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                parameters = [*item.get("parameters", ()), *item[method].get("parameters", ())]
                yield path, method, {**item[method], "parameters": parameters}


def title(path: str, method: str) -> str:
    """Return a call's heading, with a separate anchor."""
    return f"{method.upper()} {path}"


def anchor(heading: str) -> str:
    """Return a heading's anchor."""
    return "".join(one for one in heading.lower().replace(" ", "-") if one.isalnum() or one in "-_")


def call_lines(path: str, method: str, call: Schema) -> Iterator[str]:
    """Yield a call's heading, parameters, body and answers."""
    yield from (f"## {title(path, method)}", "", call["summary"], "")
    if call.get("description"):
        yield from (call["description"], "")
    if call["parameters"]:
        yield from ("| parameter | in | type | |", "| --- | --- | --- | --- |")
        for one in call["parameters"]:
            said = [one.get("description", ""), "" if not one.get("required") else "*required*"]
            words = cell(words_of(one["schema"]))
            yield f"| `{one['name']}` | {one['in']} | {words} | {cell('; '.join(filter(None, said)))} |"
        yield ""
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        yield from (f"Body, `{kind}`: {words_of(content['schema'])}", "")
    yield from ("| status | answer | |", "| --- | --- | --- |")
    for status, answer in call["responses"].items():
        if is_error(answer):
            continue
        bodies = [f"`{kind}`: {words_of(content['schema'])}" for kind, content in answer.get("content", {}).items()]
        yield f"| {status} | {cell('; '.join(bodies))} | {cell(answer.get('description', ''))} |"
    yield ""
    if errors := [status for status, answer in call["responses"].items() if is_error(answer)]:
        yield from (f"[Errors](#errors-over-http): {', '.join(errors)}.", "")


def is_error(answer: Schema) -> bool:
    """Return whether an answer has the shape of all errors."""
    return any(one["schema"].get("$ref", "").endswith("/Error") for one in answer.get("content", {}).values())


def error_lines(calls: list[tuple[str, str, Schema]]) -> Iterator[str]:
    """Yield the table of all errors of all calls; a status has the same meaning everywhere."""
    meanings: dict[str, list[str]] = {}
    for _, _, call in calls:
        for status, answer in call["responses"].items():
            if is_error(answer) and answer["description"] not in meanings.setdefault(status, []):
                meanings[status].append(answer["description"])
    rows = [f"| {status} | {cell('; or '.join(meaning))} |" for status, meaning in sorted(meanings.items())]
    yield from ("# Errors over HTTP", "", "Each is an [Error](#error).", "", "| status | |", "| --- | --- |", *rows, "")


def schema_lines(schema: Schema) -> Iterator[str]:
    """Yield a schema's description, and the table of its fields, including fields of nested objects."""
    if schema.get("description"):
        yield from (schema["description"], "")
    rows = list(field_rows(schema, ""))
    if not rows:
        yield from (words_of(schema), "")
        return
    yield from ("| field | type | default | |", "| --- | --- | --- | --- |", *rows, "")
    if schema.get("additionalProperties") is False:
        yield from ("A field that is none of these is refused by name.", "")


def field_rows(schema: Schema, before: str) -> Iterator[str]:
    """Yield a row for each field of an object, and for the fields of objects and lists of objects in it."""
    for name, field in schema.get("properties", {}).items():
        inner = bare(field)
        default = "*required*" if name in schema.get("required", ()) else default_of(inner)
        yield f"| `{before}{name}` | {cell(words_of(field))} | {default} | {cell(inner.get('description', ''))} |"
        if inner.get("type") == "array":
            yield from field_rows(inner.get("items", {}), f"{before}{name}[].")
        elif inner.get("type") == "object":
            yield from field_rows(inner, f"{before}{name}.")


def bare(field: Schema) -> Schema:
    """Return a field's schema without the null that only says that it may be absent."""
    choices = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if len(choices) != 1:
        return field
    return {**choices[0], **{name: value for name, value in field.items() if name != "anyOf"}}


def default_of(schema: Schema) -> str:
    """Return a default as a request would have it."""
    if "default" not in schema:
        return ""
    return f"`{as_written(schema['default'])}`"


def as_written(value: Any) -> str:
    """Return a value as a request would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def words_of(schema: Schema) -> str:
    """Return a schema's values, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{anchor(name)})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(words_of(one) for one in schema[choice] if one.get("type") != "null")
    if "const" in schema:
        return f"`{as_written(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    return words_of_type(schema)


def words_of_type(schema: Schema) -> str:
    """Return the words of a schema that has a type."""
    kind = schema.get("type", "anything")
    if isinstance(kind, list):
        return " or ".join(words_of_type({**schema, "type": one}) for one in kind if one != "null")
    if kind == "array":
        return f"list of {words_of(schema.get('items', {}))}{within(schema, 'minItems', 'maxItems')}"
    if kind in ("integer", "number"):
        word = "whole number" if kind == "integer" else "number"
        return f"{word}{within(schema, 'minimum', 'maximum')}"
    return words_of_text(schema) if kind == "string" else SIMPLE.get(kind, kind)


def words_of_text(schema: Schema) -> str:
    """Return the words of a text: its form where it has one, and its length."""
    if "contentMediaType" in schema:
        return "a file"
    if schema.get("contentEncoding") == "base64":
        return "base64"
    form = f" of the form `{schema['pattern']}`" if "pattern" in schema else ""
    return f"text{within(schema, 'minLength', 'maxLength', ' characters')}{form}"


def within(schema: Schema, least: str, most: str, unit: str = "") -> str:
    """Return the bounds of a value, without those of its type."""
    low, high = (schema.get(name) for name in (least, most))
    low, high = (None if one is None or abs(one) >= WIDE else one for one in (low, high))
    if low is None and high is None:
        return ""
    if high is None:
        return f", at least {low}{unit}"
    return f", {'at most' if low is None else f'{low} to'} {high}{unit}"


def cell(text: str) -> str:
    """Return text that does not break a table."""
    return text.replace("|", "\\|")

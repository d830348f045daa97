"""The OpenAPI 3.1 document, made from the table of routes and the models. Must hold nothing of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from cloche import __version__
from cloche.api.models import ErrorBody
from cloche.server.call import Route

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"{(\w+)}")
_Schema = dict[str, Any]


def document(routes: Sequence[Route]) -> _Schema:
    """Return the document."""
    used: list[tuple[type[BaseModel], JsonSchemaMode]] = [(ErrorBody, "serialization")]
    for route in routes:
        if route.query is not None:
            used.append((route.query, "validation"))
        if isinstance(route.body, type):
            used.append((route.body, "validation"))
        if isinstance(route.answer, type):
            used.append((route.answer, "serialization"))
    refs, definitions = models_json_schema(list(dict.fromkeys(used)), ref_template=_REF)
    schemas: _Schema = dict(definitions["$defs"])
    paths: _Schema = {}
    for route in routes:
        query = None if route.query is None else schemas[_name(refs[route.query, "validation"])]
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs, query)
    for route in routes:  # what stands behind a ? stands there alone
        if route.query is not None:
            schemas.pop(_name(refs[route.query, "validation"]), None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cloche",
            "version": __version__,
            "description": "Sandboxes over HTTP. docs/api.md says what schemas cannot.",
        },
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                **schemas,
                "Error": {
                    "type": "object",
                    "properties": {"error": refs[ErrorBody, "serialization"]},
                    "required": ["error"],
                },
            },
        },
    }


def _name(ref: _Schema) -> str:
    return str(ref["$ref"]).rpartition("/")[2]


def _operation(route: Route, refs: Any, query: _Schema | None) -> _Schema:
    operation: _Schema = {
        "operationId": route.name,
        "summary": route.says,
        "parameters": [*_in_path(route), *_in_query(query)],
        "responses": _responses(route, refs),
    }
    if route.scope is None:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.body_optional and isinstance(route.body, type),
            "content": _content(route.body, refs, "validation"),
        }
    return operation


def _in_path(route: Route) -> list[_Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(route.path)
    ]


def _in_query(query: _Schema | None) -> list[_Schema]:
    if query is None:
        return []
    required = query.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(schema)}
        for name, schema in query.get("properties", {}).items()
    ]


def _plain(schema: _Schema) -> _Schema:
    """Leave out that a parameter may be null: one that is not there is none."""
    options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    kept = {name: value for name, value in schema.items() if name not in {"anyOf", "title", "default"}}
    return {**kept, **options[0]} if len(options) == 1 else kept


def _content(kind: type[BaseModel] | str, refs: Any, mode: JsonSchemaMode) -> _Schema:
    if not isinstance(kind, str):
        return {"application/json": {"schema": refs[kind, mode]}}
    schema: _Schema = {"type": "string", "format": "binary"}
    if kind.startswith("text/"):
        schema = {"type": "string"}
    elif kind == "application/json":
        schema = {"type": "object"}
    return {kind: {"schema": schema}}


def _responses(route: Route, refs: Any) -> _Schema:
    good: _Schema = {"description": "Done." if route.status != 101 else "The line is the other protocol's."}
    if route.answer is not None:
        good["content"] = _content(route.answer, refs, "serialization")
    if route.name == "command_output":
        good["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    answers: _Schema = {str(route.status): good}
    for status, says in route.also.items():
        answers[str(status)] = {**good, "description": says}
    if route.name == "ready":
        answers["503"] = {**good, "description": "Something is broken, and is named."}
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    answers["default"] = {"description": "An error."}
    if route.method != "HEAD":
        answers["default"]["content"] = error
    return answers


def encoded(routes: Sequence[Route]) -> bytes:
    """Return the document's bytes."""
    return json.dumps(document(routes), separators=(",", ":")).encode()


def table(routes: Sequence[Route]) -> str:
    """Return the routes as a table of docs/api.md."""
    rows = ["| request | what | scope | body | answer |", "| --- | --- | --- | --- | --- |"]
    for route in routes:
        scope = route.scope.value if route.scope else "–"
        cells = (
            f"`{route.method} {route.path}`",
            route.says,
            scope,
            _shown(route.body) or "–",
            f"{route.status} {_shown(route.answer)}".strip(),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _shown(kind: type[BaseModel] | str | None) -> str:
    if kind is None:
        return ""
    return f"`{kind}`" if isinstance(kind, str) else f"`{kind.__name__}`"

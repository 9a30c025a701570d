"""Documents against their JSON Schemas."""

from __future__ import annotations

from typing import Any

from ascend_dump.cli.shared.schemas import schema

__all__ = ["faults_of", "strict"]


def strict(part: Any) -> Any:
    """Return the schema with all its objects closed: users accept fields that come later, a test does not."""
    if isinstance(part, list):
        return [strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {"additionalProperties": False} if "required" in part and "properties" in part else {}
    return {**closed, **{name: strict(item) for name, item in part.items()}}


def faults_of(document: Any, name: str = "") -> list[str]:
    """Return what is wrong with a document. name: of its schema, else the document's field `schema` names it."""
    import jsonschema

    name = name or document["schema"].split("/")[1]
    described = strict(schema(name))
    jsonschema.Draft202012Validator.check_schema(described)
    faults = jsonschema.Draft202012Validator(described).iter_errors(document)
    return [f"{name}{fault.json_path[1:]}: {fault.message[:300]}" for fault in faults]

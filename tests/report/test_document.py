"""The JSON document: one form, described by the schema that lies in docs/."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splitlearn.report import Document, dump, load, schema
from tests.report.logs import OPEN, ROOT, document, eventful, write

SCHEMA = ROOT / "docs" / "report.schema.json"


@pytest.fixture(scope="module")
def eventful_document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(eventful(tmp_path_factory.mktemp("report") / "audit", steps=10))


def test_the_schema_in_docs_is_that_of_the_program() -> None:
    assert SCHEMA.read_bytes() == schema(), (
        'write it anew: .venv/bin/python -c "import sys; from splitlearn.report import schema; '
        'sys.stdout.buffer.write(schema())" > docs/report.schema.json'
    )


def test_a_document_reads_back_and_is_written_in_one_way(eventful_document: Document) -> None:
    data = dump(eventful_document)
    assert load(data) == eventful_document
    assert dump(load(data)) == data


def test_an_unknown_field_or_version_is_no_document(tmp_path: Path) -> None:
    said = json.loads(dump(document(write(tmp_path, OPEN))))
    for change in ({"version": 2}, {"more": 1}, {"runs": None}):
        with pytest.raises(msgspec.ValidationError):
            load(json.dumps(said | change).encode())


def conforms(value: Any, rule: dict[str, Any], *, definitions: dict[str, Any]) -> bool:
    """Whether `value` is what `rule` describes: as much of JSON Schema as the schema uses."""
    known = {"$ref", "anyOf", "const", "default", "description", "enum", "items", "maxItems"}
    known |= {"minItems", "prefixItems", "properties", "required", "title", "type"}
    known |= {"additionalProperties"}
    assert rule.keys() <= known, rule.keys() - known
    if "$ref" in rule:
        inner = definitions[rule["$ref"].removeprefix("#/$defs/")]
        return conforms(value, inner, definitions=definitions)
    if "anyOf" in rule:
        return any(conforms(value, each, definitions=definitions) for each in rule["anyOf"])
    if "enum" in rule:
        return value in rule["enum"]
    if isinstance(value, bool) or not isinstance(value, _TYPES[rule["type"]]):
        return isinstance(value, bool) and rule["type"] == "boolean"
    if isinstance(value, list):
        inside = rule.get("prefixItems") or [rule.get("items")] * len(value)
        return len(inside) == len(value) and all(
            conforms(one, each, definitions=definitions)
            for one, each in zip(value, inside, strict=True)
        )
    if isinstance(value, dict):
        named, others = rule.get("properties", {}), rule.get("additionalProperties", False)
        return set(rule.get("required", ())) <= value.keys() and all(
            conforms(one, named.get(name, others), definitions=definitions)
            for name, one in value.items()
            if name in named or others
        )
    return True


_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
    "null": type(None),
    "boolean": bool,
}


def test_a_document_is_what_the_schema_says(eventful_document: Document) -> None:
    described = json.loads(SCHEMA.read_bytes())
    said = json.loads(dump(eventful_document))
    definitions = described["$defs"]
    assert conforms(said, {"$ref": described["$ref"]}, definitions=definitions)
    for name in ("verdict", "steps", "log"):
        broken = said | {name: 1}
        assert not conforms(broken, {"$ref": described["$ref"]}, definitions=definitions), name
    del said["version"]
    assert not conforms(said, {"$ref": described["$ref"]}, definitions=definitions)

"""From a TOML file to a model, or to one sentence that names the key, the file and what is allowed."""

import difflib
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from splitlearn.errors import ManifestError
from splitlearn.manifest.fields import Fault, Table

__all__ = ["MAX_BYTES", "read"]

M = TypeVar("M", bound=Table)

# A job of a hundred lines has 4 KiB.
MAX_BYTES = 2**18


def read(path: Path, *, model: type[M], faults: Callable[[M], Iterator[Fault]]) -> M:
    """The file at `path` as a `model`; ManifestError for the first thing that is wrong with it.

    faults: the impossible combinations of a well-typed manifest, as key and what is wrong with it.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ManifestError(f"{path} cannot be read ({reason}); name a TOML file") from None
    if len(raw) > MAX_BYTES:
        raise ManifestError(f"{path} is larger than {MAX_BYTES} bytes; no manifest of ours is")
    try:
        table = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is not TOML in UTF-8: {error}") from None
    try:
        manifest = model.model_validate(table, context={"file": path})
    except ValidationError as errors:
        # An unknown key explains a missing one, so it comes first.
        found = sorted(
            errors.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden"
        )
        raise ManifestError(f"{path}: {_sentence(found[0], model=model)}") from None
    for key, why in faults(manifest):
        raise ManifestError(f"{path}: {key} {why}")
    return manifest


# Characters of a wrong value that an error quotes.
_QUOTED = 60


def _sentence(error: ErrorDetails, *, model: type[BaseModel]) -> str:
    loc = [str(step) for step in error["loc"] if not isinstance(step, int)]
    key = ".".join(loc)
    *tables, last = loc or [""]
    owner = _table(model, tables)
    if error["type"] == "extra_forbidden":
        where = f"[{'.'.join(tables)}] takes" if tables else "a file of this kind has the tables"
        near = difflib.get_close_matches(last, owner.model_fields, n=1)
        hint = f"; did you mean {'.'.join([*tables, *near])}?" if near else ";"
        return f"{key} is not a key{hint} {where} {', '.join(owner.model_fields)}"
    takes = _takes(owner, last)
    if error["type"] == "missing":
        return f"{key} is missing; it takes {takes}"
    reason = f" ({error['ctx']['error']})" if error["type"] == "value_error" else ""
    return f"{key} is {_quote(error['input'])}{reason}; it takes {takes}"


def _table(model: type[BaseModel], keys: Sequence[str]) -> type[BaseModel]:
    """The model of the table under `keys`."""
    for key in keys:
        inner = model.model_fields[key].annotation if key in model.model_fields else None
        if get_origin(inner) is tuple:  # of tables, as in [[chain]]
            inner = get_args(inner)[0]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model = inner
    return model


def _takes(owner: type[BaseModel], key: str) -> str:
    inner, field = _table(owner, [key]), owner.model_fields.get(key)
    if inner is not owner and not (field and get_origin(field.annotation) is tuple):
        return f"a table with {', '.join(inner.model_fields)}"
    return (field.description if field else None) or "another value"


def _quote(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."

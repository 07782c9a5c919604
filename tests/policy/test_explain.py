"""Whatever name can stand in a refusal is explained, and nothing else is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitlearn import errors
from splitlearn.errors import AuditError, ManifestError, RefusedError, SplitLearnError
from splitlearn.policy import EXPLANATIONS, Rule, explanation
from splitlearn.policy.explain import LIMITS

ROOT = Path(__file__).parents[2]


def given_rules(folder: str) -> Iterator[tuple[str, str]]:
    """Every `rule="..."` in a call, where it stands, with `RULE` for what is filled in."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.keyword) or node.arg != "rule":
                continue
            place = f"{path.relative_to(ROOT)}:{node.value.lineno}"
            match node.value:
                case ast.Constant(value=str(name)):
                    yield place, name
                case ast.JoinedStr(values=values):
                    yield (
                        place,
                        "".join(v.value if isinstance(v, ast.Constant) else "RULE" for v in values),
                    )


RAISED = sorted({*given_rules("splitlearn"), *given_rules("parties")})


def test_the_library_raises_by_name() -> None:
    names = {name for _, name in RAISED}
    assert {"no-rule", "gate-shut", "content.whole", "content.labels", "RULE.codecs"} <= names


@pytest.mark.parametrize(("place", "name"), RAISED, ids=lambda value: value)
def test_every_name_that_can_be_raised_is_explained(place: str, name: str) -> None:
    if name == "RULE.RULE":  # a limit of a rule, or of a table, named by a variable
        return
    explanation(name.replace("RULE", "activation"))


def test_every_limit_of_a_rule_is_explained_and_no_other() -> None:
    about = {"id", "direction", "peer", "kinds", "max_row_norm"}  # the last is content.max_row_norm
    assert set(LIMITS) == set(Rule.__struct_fields__) - about


def test_every_error_that_a_denied_record_can_name_is_explained() -> None:
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, SplitLearnError)
        # A refusal has its rule's name, and what cannot be logged is not logged.
        assert (name in EXPLANATIONS) is not issubclass(kind, RefusedError | AuditError)


def test_nothing_is_explained_that_cannot_happen() -> None:
    raised = {name for _, name in RAISED}
    content = {name for name in EXPLANATIONS if name.startswith("content.")}
    assert content == {name for name in raised if name.startswith("content.")}


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_each_explanation_says_what_why_and_what_to_do(name: str) -> None:
    explained = EXPLANATIONS[name]
    for sentence in explained:
        assert len(sentence) > 15
        assert not sentence.endswith(".")
        assert "  " not in sentence


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("content.wole", "content.whole"),
        ("activation.max_colums", "activation.max_columns"),
        ("norule", "no-rule"),
        ("a.b.max_rows", ""),
        (".max_rows", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_none_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ManifestError, match=f"did you mean '{near}" if near else "no rule"):
        explanation(name)

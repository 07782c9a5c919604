"""The error tree: one exit code for each remedy, and messages as they were given."""

import pytest

from splitlearn import errors
from splitlearn.errors import RefusedError, SplitLearnError


@pytest.mark.parametrize(
    ("name", "exit_code"),
    [
        ("SplitLearnError", 1),
        ("ManifestError", 2),
        ("RefusedError", 3),
        ("PeerError", 4),
        ("WireError", 4),
        ("SessionError", 4),
        ("IdentityError", 4),
        ("ChannelError", 5),
        ("AuditError", 6),
    ],
)
def test_each_error_has_the_exit_code_of_its_remedy(name: str, exit_code: int) -> None:
    error = getattr(errors, name)
    assert error.exit_code == exit_code
    assert issubclass(error, SplitLearnError)
    assert error.__doc__


def test_the_peers_faults_are_one_branch() -> None:
    peer = {name for name in errors.__all__ if issubclass(getattr(errors, name), errors.PeerError)}
    assert peer == {"PeerError", "WireError", "SessionError", "IdentityError"}


def test_a_refusal_names_its_rule_and_keeps_its_sentence() -> None:
    error = RefusedError(
        "an activation of 5 dimensions; the policy allows 2", rule="trusted.activation"
    )
    assert error.rule == "trusted.activation"
    assert str(error) == "an activation of 5 dimensions; the policy allows 2"


def test_nothing_but_the_errors_is_public() -> None:
    public = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert public == set(errors.__all__)

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity.names import (
    PartyName,
    check_federation,
    check_party,
    parse_role,
    registrar_name,
)
from splitlearn.roles import Role

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?", fullmatch=True)


@given(party=LABEL, labels=st.lists(LABEL, min_size=1, max_size=3), role=st.sampled_from(Role))
def test_a_uri_reads_back_as_the_name_it_was_written_from(
    party: str, labels: list[str], role: Role
) -> None:
    name = PartyName(federation=".".join(labels), party=party, role=role)
    assert PartyName.parse(name.uri) == name
    assert name.dns == f"{role}.{party}.{'.'.join(labels)}"


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_an_identity_error(text: str) -> None:
    with suppress(IdentityError):
        assert PartyName.parse(text).uri == text


@pytest.mark.parametrize("party", ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a" * 43, "a\n"])
def test_a_misspelt_party_is_refused_with_what_is_allowed(party: str) -> None:
    with pytest.raises(ManifestError, match=r"a-z, 0-9"):
        check_party(party)


@pytest.mark.parametrize("federation", ["", ".", "a.", ".a", "a..b", "A.b", "a" * 65, "a/b", "a\n"])
def test_a_misspelt_federation_is_refused_with_what_is_allowed(federation: str) -> None:
    with pytest.raises(ManifestError, match=r"joined by dots"):
        check_federation(federation)


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://fed.example/party/bank/role/king",
        "spiffe://fed.example/party/-/role/compute",
        "spiffe://fed..example/party/bank/role/compute",
        "spiffe://fed.example/party/bank/role/compute/",
        "https://fed.example/party/bank/role/compute",
        "spiffe://fed.example/party/bank/role/compute\n",
    ],
)
def test_a_uri_of_nobody_is_an_identity_error(uri: str) -> None:
    with pytest.raises(IdentityError):
        PartyName.parse(uri)


def test_a_name_reads_as_role_and_party() -> None:
    assert (
        str(PartyName(federation="fed.example", party="bank", role=Role.COMPUTE)) == "compute bank"
    )


def test_an_unknown_role_is_answered_with_those_there_are() -> None:
    assert parse_role("compute") is Role.COMPUTE
    with pytest.raises(ManifestError, match=r"auditor, compute"):
        parse_role("king")


def test_the_registrar_bears_a_role_that_no_party_is_invited_to() -> None:
    assert registrar_name("fed.example").role is Role.REGISTRAR

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.errors import ChannelError, IdentityError, ManifestError
from splitlearn.identity import (
    Authority,
    Identity,
    Registrar,
    approve,
    asked_name,
    create_federation,
    install,
    invite,
    join,
    request,
    revoke,
)
from splitlearn.identity.tokens import Token
from splitlearn.roles import Role


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_federation(tmp_path / "fed", name="fed.example")


@pytest.fixture
def address(authority: Authority) -> Iterator[str]:
    with Registrar(authority.folder, port=0) as registrar:
        yield registrar.address


def test_a_token_becomes_an_identity(authority: Authority, address: str, tmp_path: Path) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    bank = join(token, address=address, folder=tmp_path / "bank")
    assert bank.name.uri == "spiffe://fed.example/party/bank/role/compute"
    assert bank.registrar == address
    assert bank == Identity.load(tmp_path / "bank")
    for path in (tmp_path / "bank").iterdir():
        assert Token.parse(token).secret.encode() not in path.read_bytes()


def test_a_token_that_was_used_is_refused(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    join(token, address=address, folder=tmp_path / "bank")
    with pytest.raises(IdentityError, match=rf"{address} says: join token .* was used"):
        join(token, address=address, folder=tmp_path / "thief")
    assert not (tmp_path / "thief" / "party.crt").exists()


def test_a_token_that_expired_is_refused(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    past = datetime.now(UTC) - timedelta(hours=2)
    token = invite(authority.folder, party="bank", role=Role.COMPUTE, now=past)
    with pytest.raises(IdentityError, match=r"says: join token for compute bank expired"):
        join(token, address=address, folder=tmp_path / "bank")


def test_a_wrong_secret_is_refused_and_not_quoted(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    wrong = token.replace(Token.parse(token).secret, "A" * 32)
    with pytest.raises(IdentityError, match=r"wrong or unknown") as caught:
        join(wrong, address=address, folder=tmp_path / "bank")
    assert "A" * 32 not in str(caught.value)


def test_a_registrar_of_another_ca_never_sees_the_token(
    authority: Authority, tmp_path: Path
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    other = create_federation(tmp_path / "other", name="fed.example")
    told: list[str] = []
    with (
        Registrar(other.folder, port=0, report=told.append) as wrong,
        pytest.raises(IdentityError, match=r"wrong CA: .* the token was not sent"),
    ):
        join(token, address=wrong.address, folder=tmp_path / "bank")
    assert told == []
    assert not (tmp_path / "bank").exists()


def test_nobody_at_the_address_is_a_channel_error(authority: Authority, tmp_path: Path) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ChannelError, match=rf"registrar at {address} refuses connections"):
        join(token, address=address, folder=tmp_path / "bank")


def test_a_slip_in_token_or_address_is_noticed_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"not a join token"):
        join("sl1", address="127.0.0.1:1", folder=tmp_path)
    with pytest.raises(ManifestError, match=r"HOST:PORT"):
        join(f"sl1.{'0' * 16}.{'A' * 32}.{'0' * 64}", address="nowhere", folder=tmp_path)


def test_joining_again_keeps_the_keys_and_so_the_signer_of_the_logs(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    first = join(
        invite(authority.folder, party="bank", role=Role.COMPUTE),
        address=address,
        folder=tmp_path / "bank",
    )
    again = join(
        invite(authority.folder, party="bank", role=Role.COMPUTE),
        address=address,
        folder=tmp_path / "bank",
    )
    assert again.log_public == first.log_public
    assert again.fingerprint != first.fingerprint


def test_a_joined_folder_uses_up_no_token_of_another_party(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    join(token, address=address, folder=tmp_path / "bank")
    token = invite(authority.folder, party="lab", role=Role.COMPUTE)
    with pytest.raises(IdentityError, match=r"join token is for .*lab.*, not for .*bank"):
        join(token, address=address, folder=tmp_path / "bank")
    assert join(token, address=address, folder=tmp_path / "lab").name.party == "lab"


def test_a_joined_folder_takes_no_token_of_another_federation(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    join(token, address=address, folder=tmp_path / "bank")
    other = create_federation(tmp_path / "other", name="other.example")
    token = invite(other.folder, party="bank", role=Role.COMPUTE)
    with pytest.raises(ManifestError, match=r"belongs to federation fed.example"):
        join(token, address=address, folder=tmp_path / "bank")


def test_a_request_carried_by_hand_becomes_an_identity(
    authority: Authority, tmp_path: Path
) -> None:
    folder = tmp_path / "bank"
    asked = request(folder, party="bank", role=Role.COMPUTE, federation="fed.example")
    assert b"PRIVATE" not in asked.read_bytes()
    assert asked_name(asked) == authority.name(party="bank", role=Role.COMPUTE)
    given = approve(authority.folder, request_file=asked)
    bank = install(folder, certificate_file=given, pin=authority.pin.upper())
    assert bank.name == authority.name(party="bank", role=Role.COMPUTE)
    assert bank.registrar is None


def test_a_certificate_file_says_where_to_renew(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    folder = tmp_path / "bank"
    asked = request(folder, party="bank", role=Role.COMPUTE, federation="fed.example")
    given = approve(authority.folder, request_file=asked)
    assert install(folder, certificate_file=given).registrar == address


def test_a_wrong_pin_installs_nothing(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    asked = request(folder, party="bank", role=Role.COMPUTE, federation="fed.example")
    given = approve(authority.folder, request_file=asked)
    for pin in ("0" * 64, "ä"):
        with pytest.raises(IdentityError, match=r"carries the wrong CA"):
            install(folder, certificate_file=given, pin=pin)
    assert not (folder / "party.crt").exists()


def test_nobody_is_approved_as_registrar_in_another_federation_or_when_denied(
    authority: Authority, tmp_path: Path
) -> None:
    for party, role, federation, reason in (
        ("bank", Role.REGISTRAR, "fed.example", "the federation's own"),
        ("bank", Role.COMPUTE, "other.example", "another federation"),
        ("lab", Role.COMPUTE, "fed.example", "deny-list"),
    ):
        revoke(authority.folder, party="lab")
        asked = request(tmp_path / party, party=party, role=role, federation=federation)
        with pytest.raises(IdentityError, match=reason):
            approve(authority.folder, request_file=asked)


def test_a_request_file_with_swapped_keys_is_refused(authority: Authority, tmp_path: Path) -> None:
    asked = request(tmp_path / "a", party="a", role=Role.COMPUTE, federation="fed.example")
    other = request(tmp_path / "b", party="b", role=Role.COMPUTE, federation="fed.example")
    mixed = json.loads(asked.read_bytes()) | {"csr": json.loads(other.read_bytes())["csr"]}
    asked.write_text(json.dumps(mixed))
    with pytest.raises(IdentityError, match=r"did not sign the request"):
        approve(authority.folder, request_file=asked)


def test_files_that_are_none_are_manifest_errors(authority: Authority, tmp_path: Path) -> None:
    junk = tmp_path / "junk.json"
    junk.write_text("{}")
    with pytest.raises(ManifestError, match=r"junk.json is not one of ours"):
        approve(authority.folder, request_file=junk)
    with pytest.raises(ManifestError, match=r"junk.json is not one of ours"):
        install(tmp_path, certificate_file=junk)
    with pytest.raises(ManifestError, match=r"none.json cannot be read"):
        asked_name(tmp_path / "none.json")

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest

from splitlearn.errors import ManifestError
from splitlearn.identity import (
    Authority,
    Identity,
    Registrar,
    create_federation,
    exchange,
    invite,
    revoke,
    tls,
)
from splitlearn.identity.certificates import make_request, new_key, pem, read_pem
from splitlearn.identity.denied import DenyList
from splitlearn.identity.judge import check_chain
from splitlearn.identity.names import registrar_name
from splitlearn.identity.party import Keys
from splitlearn.identity.tokens import Token
from splitlearn.roles import Role
from tests.federation import make_identity


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_federation(tmp_path / "fed", name="fed.example")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def registrar(authority: Authority, told: list[str]) -> Iterator[Registrar]:
    with Registrar(authority.folder, port=0, report=told.append) as registrar:
        yield registrar


def join_body(token: str, keys: Keys, *, name: str | None = None) -> bytes:
    parts = Token.parse(token)
    csr, public, proof = exchange.proof_fields(keys.request())
    return msgspec.json.encode(
        exchange.Join(
            id=parts.id,
            secret=parts.secret,
            csr=csr,
            log_public=public,
            log_proof=proof,
            name=name,
        )
    )


def renew_body(keys: Keys) -> bytes:
    csr, public, proof = exchange.proof_fields(keys.request())
    return msgspec.json.encode(exchange.Renew(csr=csr, log_public=public, log_proof=proof))


def posted(
    registrar: Registrar, path: str, body: bytes, *, certificate: bytes | None = None
) -> tuple[HTTPStatus, bytes]:
    answer = registrar.answer("POST", path, body=body, certificate=certificate)
    return answer.status, answer.body


def test_over_the_line_it_gives_ca_deny_list_and_time(registrar: Registrar) -> None:
    client = exchange.Client(
        address=registrar.address,
        context=tls.client_context(ca_pem=pem(registrar.authority.ca)),
        server_name=registrar_name("fed.example").dns,
    )
    assert client.get("/v1/ca") == pem(registrar.authority.ca)
    listed = DenyList.parse(
        client.get("/v1/denied"), ca=registrar.authority.ca, federation="fed.example"
    )
    assert listed.number == 0
    now = msgspec.json.decode(client.get("/v1/time"), type=exchange.Now)
    assert abs(now.time - datetime.now(UTC).timestamp()) < 60
    assert now.version == exchange.software_version()


def test_the_address_stands_in_the_federation_for_invitations(
    registrar: Registrar, authority: Authority
) -> None:
    assert registrar.address == f"127.0.0.1:{registrar.port}"
    assert Authority.open(authority.folder).registrar == registrar.address


def test_an_advertised_address_goes_before_the_own_one(authority: Authority) -> None:
    registrar = Registrar(authority.folder, port=0, advertised="ca.example:8470")
    registrar.close()
    assert Authority.open(authority.folder).registrar == "ca.example:8470"


def test_a_granted_certificate_has_the_tokens_name_and_the_askers_keys(
    registrar: Registrar, authority: Authority, tmp_path: Path, told: list[str]
) -> None:
    keys = Keys.obtain(tmp_path / "bank")
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    status, body = posted(registrar, "/v1/join", join_body(token, keys))
    grant = msgspec.json.decode(body, type=exchange.Grant)
    assert status == HTTPStatus.OK
    leaf = read_pem(grant.certificate.encode(), whose="it")
    check_chain(leaf, ca=authority.ca, whose="it")
    assert leaf.public_key() == keys.certificate.public_key()
    assert any("party/bank/role/compute" in line for line in told)


def test_a_broken_request_does_not_use_the_token_up(
    registrar: Registrar, authority: Authority, tmp_path: Path
) -> None:
    keys = Keys.obtain(tmp_path / "bank")
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    whole = join_body(token, keys)
    for broken in (b"", whole[:-10], whole.replace(b"BEGIN", b"BEGUN")):
        assert posted(registrar, "/v1/join", broken)[0] == HTTPStatus.FORBIDDEN
    assert posted(registrar, "/v1/join", whole)[0] == HTTPStatus.OK


def test_no_report_and_no_refusal_shows_a_secret(
    registrar: Registrar, authority: Authority, tmp_path: Path, told: list[str]
) -> None:
    keys = Keys.obtain(tmp_path / "bank")
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    body = join_body(token, keys)
    posted(registrar, "/v1/join", body)
    _, refusal = posted(registrar, "/v1/join", body)
    secret = Token.parse(token).secret
    assert secret.encode() not in refusal
    assert all(secret not in line for line in told)


def test_a_renewal_keeps_name_and_keys(
    registrar: Registrar, authority: Authority, tmp_path: Path
) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE, authority=authority)
    keys = Keys.load(bank.folder)
    status, body = posted(
        registrar, "/v1/renew", renew_body(keys), certificate=bank.certificate_der
    )
    assert status == HTTPStatus.OK
    leaf = read_pem(msgspec.json.decode(body, type=exchange.Grant).certificate.encode(), whose="it")
    assert leaf.public_key() == bank.certificate.public_key()
    assert leaf.serial_number != bank.certificate.serial_number


def test_a_renewal_needs_the_certificate_and_its_keys(
    registrar: Registrar, authority: Authority, tmp_path: Path
) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE, authority=authority)
    keys = Keys.load(bank.folder)
    status, body = posted(registrar, "/v1/renew", renew_body(keys))
    assert status == HTTPStatus.FORBIDDEN
    assert b"shows the certificate in use" in body
    for other in (Keys(certificate=new_key(), log=keys.log), Keys.obtain(tmp_path / "other")):
        status, body = posted(
            registrar, "/v1/renew", renew_body(other), certificate=bank.certificate_der
        )
        assert status == HTTPStatus.FORBIDDEN
        assert b"the same keys only" in body


def test_a_denied_party_neither_renews_nor_joins(
    registrar: Registrar, authority: Authority, tmp_path: Path
) -> None:
    bank = make_identity(tmp_path, "bank", Role.COMPUTE, authority=authority)
    keys = Keys.load(bank.folder)
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    revoke(authority.folder, party="bank")
    status, body = posted(
        registrar, "/v1/renew", renew_body(keys), certificate=bank.certificate_der
    )
    assert status == HTTPStatus.FORBIDDEN
    assert b"denied" in body
    status, body = posted(registrar, "/v1/join", join_body(token, keys))
    assert status == HTTPStatus.FORBIDDEN
    assert b"deny-list" in body


def test_the_registrars_own_certificate_renews_nothing(
    registrar: Registrar, authority: Authority
) -> None:
    own = Identity.load(authority.folder / "registrar")
    keys = Keys.load(own.folder)
    status, body = posted(registrar, "/v1/renew", renew_body(keys), certificate=own.certificate_der)
    assert status == HTTPStatus.FORBIDDEN
    assert b"wrong role" in body


def test_what_is_not_in_the_table_is_not_found(registrar: Registrar) -> None:
    for method, path in (("GET", "/v1/join"), ("POST", "/v1/ca"), ("GET", "/../ca.key")):
        answer = registrar.answer(method, path, body=b"", certificate=None)
        assert answer.status == HTTPStatus.NOT_FOUND


def test_trouble_in_the_own_folder_is_told_to_the_own_people_only(
    registrar: Registrar, authority: Authority, tmp_path: Path, told: list[str]
) -> None:
    token = invite(authority.folder, party="bank", role=Role.COMPUTE)
    body = join_body(token, Keys.obtain(tmp_path / "bank"))
    (authority.folder / "tokens.json").write_text("[]")
    status, refusal = posted(registrar, "/v1/join", body)
    assert status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert str(authority.folder).encode() not in refusal
    assert any(str(authority.folder) in line for line in told)


def test_a_fault_is_one_line_without_a_trace(registrar: Registrar, told: list[str]) -> None:
    registrar.fault("KeyError")
    assert told == ["fault: KeyError in one connection"]


def test_its_own_certificate_is_replaced_at_two_thirds_of_its_life(authority: Authority) -> None:
    moments = [datetime.now(UTC)]
    registrar = Registrar(authority.folder, port=0, clock=lambda: moments[0])
    try:
        first = registrar.context
        assert registrar.context is first
        moments[0] += timedelta(hours=17)
        renewed = registrar.context
        assert renewed is not first
        assert registrar.context is renewed
        own = Identity.load(authority.folder / "registrar")
        assert own.certificate.not_valid_after_utc > moments[0] + timedelta(hours=23)
    finally:
        registrar.close()


def test_a_port_in_use_is_a_manifest_error(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ManifestError, match=rf"cannot listen on 127.0.0.1:{port}"):
            Registrar(authority.folder, port=port)
    with pytest.raises(ManifestError, match=r"cannot listen"):
        Registrar(authority.folder, port=70_000)


def test_it_serves_until_it_is_closed_from_another_thread(authority: Authority) -> None:
    registrar = Registrar(authority.folder, port=0)
    thread = threading.Thread(target=registrar.serve_forever)
    thread.start()
    client = exchange.Client(
        address=registrar.address, context=tls.client_context(ca_pem=None), server_name=None
    )
    assert client.get("/v1/ca")
    registrar.close()
    thread.join(5)
    assert not thread.is_alive()


def test_a_certificate_request_with_somebody_elses_log_key_is_refused(
    registrar: Registrar, authority: Authority, tmp_path: Path
) -> None:
    mine, theirs = Keys.obtain(tmp_path / "a"), Keys.obtain(tmp_path / "b")
    stolen = make_request(mine.certificate, log_key=theirs.log)
    token = Token.parse(invite(authority.folder, party="bank", role=Role.COMPUTE))
    csr, public, _ = exchange.proof_fields(stolen)
    ask = exchange.Join(
        id=token.id,
        secret=token.secret,
        csr=csr,
        log_public=public,
        log_proof=mine.log.sign(b"not the request"),
        name=None,
    )
    status, body = posted(registrar, "/v1/join", msgspec.json.encode(ask))
    assert status == HTTPStatus.FORBIDDEN
    assert b"did not sign" in body

import ssl
from pathlib import Path

import pytest

from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.errors import ManifestError
from splitlearn.identity import revoke
from splitlearn.identity.denied import adopt
from splitlearn.identity.tls import client_context, server_context
from tests.federation import make_authority, make_identity


def test_a_renewed_certificate_and_a_longer_deny_list_are_noticed(tmp_path: Path) -> None:
    first = make_identity(tmp_path, "anna", "generator")
    fresh = FreshIdentity(first.folder)
    assert fresh.now()[0] == first
    second = make_identity(tmp_path, "anna", "generator")
    assert second.fingerprint != first.fingerprint
    assert fresh.now()[0].fingerprint == second.fingerprint
    assert fresh.now()[1].number == 0
    authority = make_authority(tmp_path)
    revoke(authority.folder, party="bert")
    adopt(first.folder, data=authority.denied_json, ca=authority.ca, federation="fed.example")
    assert fresh.now()[1].number == 1


def test_while_the_folder_is_broken_the_last_good_identity_stays(tmp_path: Path) -> None:
    anna = make_identity(tmp_path, "anna", "generator")
    fresh = FreshIdentity(anna.folder)
    (anna.folder / "party.crt").write_text("half", encoding="ascii")
    assert fresh.now()[0] == anna
    (anna.folder / "party.crt").unlink()
    assert fresh.now()[0] == anna
    renewed = make_identity(tmp_path, "anna", "generator")
    assert fresh.now()[0].fingerprint == renewed.fingerprint


def test_a_folder_without_an_identity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds no certificate"):
        FreshIdentity(tmp_path)


def test_a_context_shows_the_new_certificate_in_its_next_handshake(tmp_path: Path) -> None:
    anna = make_identity(tmp_path, "anna", "generator")
    trainer = make_identity(tmp_path, "trainer", "discriminator")
    fresh = FreshIdentity(anna.folder)
    context = fresh.presented_by(client_context(ca_pem=None))
    server = server_context(ca_pem=trainer.ca_pem, folder=trainer.folder)
    server.sslsocket_class = ssl.SSLSocket
    server.verify_mode = ssl.CERT_REQUIRED
    assert shown(context, to=server) == anna.certificate_der
    renewed = make_identity(tmp_path, "anna", "generator")
    fresh.now()
    assert shown(context, to=server) == renewed.certificate_der


def shown(client: ssl.SSLContext, *, to: ssl.SSLContext) -> bytes | None:
    """The certificate that a client presents, by a handshake in memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there)
    theirs = to.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return theirs.getpeercert(binary_form=True)

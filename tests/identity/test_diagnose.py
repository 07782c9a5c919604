import dataclasses
import shutil
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from splitlearn.errors import ChannelError, IdentityError
from splitlearn.identity import (
    Identity,
    PartyName,
    Registrar,
    check_listen,
    examine,
    exchange,
    probe,
    revoke,
    tls,
)
from splitlearn.identity.diagnose import (
    Finding,
    check_clock,
    check_folder,
    check_handshake,
    check_port,
    check_versions,
)
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@contextmanager
def listening(identity: Identity) -> Iterator[str]:
    """A gRPC server that wants client certificates: what a peer really is."""
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        credentials = grpc.ssl_server_credentials(
            [(identity.key_pem, identity.chain_pem)],
            root_certificates=identity.ca_pem,
            require_client_auth=True,
        )
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def bank(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "bank", Role.TRUSTED)


@pytest.fixture
def lab(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "lab", Role.COMPUTE)


@pytest.fixture
def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def probed(
    address: str, *, identity: Identity, expected: PartyName | None, now: datetime = NOW
) -> PartyName:
    return probe(address, identity=identity, expected=expected, now=now).name


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_two_good_parties_pass_every_check(bank: Identity, lab: Identity) -> None:
    with listening(lab) as address:
        findings = examine(bank.folder, now=NOW, address=address, expected=lab.name)
    assert [finding.name for finding in findings] == [
        "versions",
        "identity folder",
        "own certificate",
        "port",
        "peer",
    ]
    assert all(finding.ok and finding.exit_code == 0 for finding in findings)


def test_any_party_of_the_federation_passes_where_none_is_expected(
    bank: Identity, lab: Identity
) -> None:
    with listening(lab) as address:
        assert probed(address, identity=bank, expected=None) == lab.name


def test_a_wrong_name_and_a_wrong_role_are_named(bank: Identity, lab: Identity) -> None:
    with listening(lab) as address:
        for expected, reason in (
            (dataclasses.replace(lab.name, party="other"), "wrong name; expected .*party/other"),
            (dataclasses.replace(lab.name, role=Role.AUDITOR), "wrong role; expected .*auditor"),
        ):
            with pytest.raises(IdentityError, match=reason):
                probed(address, identity=bank, expected=expected)


def test_a_peer_of_another_ca_is_named(lab: Identity, tmp_path: Path) -> None:
    stranger = make_identity(tmp_path / "other", "bank", Role.TRUSTED)
    with listening(lab) as address, pytest.raises(IdentityError, match=r"from the wrong CA"):
        probed(address, identity=stranger, expected=lab.name)


@pytest.mark.parametrize(
    ("begins", "ends", "reason"),
    [(-2 * DAY, -DAY, "expired at"), (DAY, 2 * DAY, "not yet valid")],
)
def test_a_peers_dates_are_named(
    bank: Identity, tmp_path: Path, begins: timedelta, ends: timedelta, reason: str
) -> None:
    old = make_identity(
        tmp_path, "old", Role.COMPUTE, not_before=NOW + begins, not_after=NOW + ends
    )
    with (
        listening(old) as address,
        pytest.raises(IdentityError, match=rf"party/old/.*{reason}"),
    ):
        probed(address, identity=bank, expected=old.name)


@pytest.mark.parametrize(
    ("begins", "ends", "reason"),
    [(-2 * DAY, -DAY, "expired at"), (DAY, 2 * DAY, "not yet valid")],
)
def test_our_own_dates_are_named_before_anybody_is_asked(
    nobody: str, lab: Identity, tmp_path: Path, begins: timedelta, ends: timedelta, reason: str
) -> None:
    old = make_identity(
        tmp_path, "old", Role.TRUSTED, not_before=NOW + begins, not_after=NOW + ends
    )
    with pytest.raises(IdentityError, match=rf"certificate in .*old.* {reason}"):
        probed(nobody, identity=old, expected=lab.name)
    found = by_name(examine(old.folder, now=NOW))["own certificate"]
    assert (found.ok, found.exit_code) == (False, 4)
    assert "clock" in found.remedy


def test_a_peer_that_does_not_accept_our_certificate_is_told_from_a_good_one(
    lab: Identity, tmp_path: Path
) -> None:
    # By the clock that is passed in ours is valid, by the peer's (the real one) it is not.
    old = make_identity(
        tmp_path, "old", Role.TRUSTED, not_before=NOW - 2 * DAY, not_after=NOW - DAY
    )
    ever = make_identity(
        tmp_path, "ever", Role.COMPUTE, not_before=NOW - 3 * DAY, not_after=NOW + DAY
    )
    with (
        listening(ever) as address,
        pytest.raises(IdentityError, match=r"closed the connection on seeing our certificate"),
    ):
        probed(address, identity=old, expected=ever.name, now=NOW - DAY * 1.5)


def test_a_foreign_certificate_is_refused_by_the_peer_and_we_say_so(
    lab: Identity, tmp_path: Path
) -> None:
    stranger = make_identity(tmp_path / "other", "bank", Role.TRUSTED)
    confused = dataclasses.replace(stranger, ca=lab.ca)
    with (
        listening(lab) as address,
        pytest.raises(IdentityError, match=r"closed the connection on seeing our certificate"),
    ):
        probed(address, identity=confused, expected=lab.name)


def test_a_peer_that_sends_an_alert_is_quoted(lab: Identity, tmp_path: Path) -> None:
    stranger = make_identity(tmp_path / "other", "bank", Role.TRUSTED)
    confused = dataclasses.replace(stranger, ca=lab.ca)
    with (
        Registrar(make_authority(tmp_path).folder, port=0) as registrar,
        pytest.raises(IdentityError, match=r"refuses our certificate: it trusts another CA"),
    ):
        probed(registrar.address, identity=confused, expected=None)


def test_a_peer_that_resets_the_connection_is_asked_twice(bank: Identity, lab: Identity) -> None:
    context = tls.server_context(ca_pem=lab.ca_pem, folder=lab.folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reset() -> None:
            for _ in range(2):
                plain, _ = listener.accept()
                linger = struct.pack("ii", 1, 0)
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

        thread = threading.Thread(target=reset)
        thread.start()
        with pytest.raises(IdentityError, match=r"closed the connection on seeing"):
            probed(f"127.0.0.1:{listener.getsockname()[1]}", identity=bank, expected=lab.name)
        thread.join()


def test_a_reset_that_python_reports_counts_as_closed(
    bank: Identity, lab: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reset(_self: object, _count: int) -> bytes:
        raise ConnectionResetError

    monkeypatch.setattr(tls._Socket, "recv", reset, raising=False)
    with (
        listening(lab) as address,
        pytest.raises(IdentityError, match=r"closed the connection on seeing"),
    ):
        probed(address, identity=bank, expected=lab.name)


def test_a_denied_peer_is_named(bank: Identity, lab: Identity, tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    revoke(authority.folder, party="lab")
    shutil.copy(authority.folder / "denied.json", bank.folder / "denied.json")
    with listening(lab) as address, pytest.raises(IdentityError, match=r"deny-list number 1"):
        probed(address, identity=bank, expected=lab.name)


def test_nobody_there_is_a_channel_error_and_the_last_finding(
    bank: Identity, lab: Identity, nobody: str
) -> None:
    with pytest.raises(ChannelError, match=r"nothing listens"):
        probed(nobody, identity=bank, expected=lab.name)
    findings = examine(bank.folder, now=NOW, address=nobody, expected=lab.name)
    assert (findings[-1].name, findings[-1].ok, findings[-1].exit_code) == ("port", False, 5)
    assert "firewall" in findings[-1].remedy


def test_a_registrar_in_the_peers_place_is_silent_and_passes_as_what_it_is(
    bank: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitlearn.identity.diagnose._VERDICT_S", 0.05)
    with Registrar(make_authority(tmp_path).folder, port=0) as registrar:
        assert probed(registrar.address, identity=bank, expected=None).role is Role.REGISTRAR


def test_a_port_that_speaks_no_tls_is_named(bank: Identity, nobody: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert check_port(address).ok
        found = check_handshake(bank, address=address, expected=None, now=NOW, deadline_s=0.2)
    assert (found.ok, found.exit_code) == (False, 5)


def test_a_broken_folder_ends_the_examination(bank: Identity) -> None:
    (bank.folder / "party.key").chmod(0o644)
    findings = examine(bank.folder, now=NOW)
    assert [(finding.name, finding.ok) for finding in findings] == [
        ("versions", True),
        ("identity folder", False),
    ]
    assert (findings[-1].exit_code, "chmod 600" in findings[-1].what) == (2, True)


def test_a_folder_open_to_others_is_a_finding(bank: Identity) -> None:
    bank.folder.chmod(0o755)
    found = check_folder(bank.folder)
    assert not found.ok
    assert found.remedy == f"chmod 700 {bank.folder}"


@pytest.mark.parametrize(
    ("ahead_s", "ok", "words"), [(0, True, "0 s"), (500, True, "ahead"), (-700, False, "behind")]
)
def test_clocks_are_compared_with_the_registrars(
    bank: Identity, tmp_path: Path, ahead_s: int, ok: bool, words: str
) -> None:
    skew = timedelta(seconds=ahead_s)
    folder = make_authority(tmp_path).folder
    with Registrar(folder, port=0, clock=lambda: datetime.now(UTC) - skew) as registrar:
        identity = dataclasses.replace(bank, registrar=registrar.address)
        found = by_name(check_clock(identity))
    assert found["registrar"].ok
    assert found["clock"].ok == ok
    assert words in found["clock"].what
    assert found["registrar's version"].ok


def test_a_registrar_years_away_still_tells_its_time(bank: Identity, tmp_path: Path) -> None:
    folder = make_authority(tmp_path).folder
    with Registrar(folder, port=0, clock=lambda: datetime.now(UTC) - 100 * DAY) as registrar:
        found = by_name(check_clock(dataclasses.replace(bank, registrar=registrar.address)))
    assert not found["clock"].ok
    assert "8640000 s ahead" in found["clock"].what


def test_another_version_at_the_registrar_is_a_finding(
    bank: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Registrar(make_authority(tmp_path).folder, port=0) as registrar:
        versions = iter(["9.9\x1b", "0.1"])
        monkeypatch.setattr(exchange, "software_version", lambda: next(versions))
        found = by_name(check_clock(dataclasses.replace(bank, registrar=registrar.address)))
    assert found["registrar's version"].what == "splitlearn 0.1 here, 9.9? at the registrar"
    assert found["registrar's version"].exit_code == 2


def test_a_registrar_that_is_not_there_is_a_finding_and_the_rest_goes_on(
    lab: Identity, nobody: str, tmp_path: Path
) -> None:
    bank = make_identity(tmp_path, "bank", Role.TRUSTED, registrar=nobody)
    with listening(lab) as address:
        found = by_name(examine(bank.folder, now=NOW, address=address, expected=lab.name))
    assert (found["registrar"].ok, found["registrar"].exit_code) == (False, 5)
    assert "splitlearn federation serve" in found["registrar"].remedy
    assert found["peer"].ok


def test_an_old_python_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_versions().ok
    monkeypatch.setattr(sys, "version_info", (3, 10))
    assert (check_versions().ok, check_versions().exit_code) == (False, 2)


def test_an_address_to_listen_on_is_tried(nobody: str) -> None:
    assert check_listen(nobody).ok
    with socket.create_server(("127.0.0.1", 0)) as taken:
        used = check_listen(f"127.0.0.1:{taken.getsockname()[1]}")
    assert used.ok
    assert "in use" in used.what
    # An address for documentation (RFC 5737), which no machine has.
    foreign = check_listen("192.0.2.1:7443")
    assert (foreign.ok, foreign.exit_code) == (False, 2)

"""What a user sees when a connection, a certificate or a token is not what it should be.

Every refusal ends the command with one line that says why and with its exit code, before the job's
deadline of five seconds would have; the doctor's answer names the same reason.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from parties import cli
from splitlearn.channel import connect, handshake
from splitlearn.channel.streams import ServerStream
from splitlearn.errors import ChannelError, IdentityError, PeerError
from splitlearn.identity import Registrar, invite, revoke
from splitlearn.roles import Role
from tests.federation import make_authority, make_identity
from tests.integration.clinic import (
    PROMPT_S,
    WAIT_S,
    Clinic,
    Peer,
    bare_listener,
    free_port,
    splitlearn,
    write_model,
)

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def clinic(tmp_path: Path, model: Path) -> Clinic:
    make_identity(tmp_path, "clinic", Role.TRUSTED)
    return Clinic(tmp_path, model)


def idle(_: object) -> None:
    """A peer that would serve, if anybody came so far."""


# Who answers at the address that the job names, where gpuhost should.


@contextlib.contextmanager
def of_another_ca(folder: Path) -> Iterator[str]:
    with Peer(make_identity(folder / "elsewhere", "gpuhost", Role.COMPUTE), idle) as peer:
        yield peer.address


@contextlib.contextmanager
def expired(folder: Path) -> Iterator[str]:
    dates = {"not_before": NOW - 2 * DAY, "not_after": NOW - DAY}
    with bare_listener(make_identity(folder, "gpuhost", Role.COMPUTE, **dates)) as address:
        yield address


@contextlib.contextmanager
def not_yet_valid(folder: Path) -> Iterator[str]:
    dates = {"not_before": NOW + DAY, "not_after": NOW + 2 * DAY}
    with bare_listener(make_identity(folder, "gpuhost", Role.COMPUTE, **dates)) as address:
        yield address


@contextlib.contextmanager
def in_another_role(folder: Path) -> Iterator[str]:
    with bare_listener(make_identity(folder, "gpuhost", Role.AUDITOR)) as address:
        yield address


@contextlib.contextmanager
def of_another_name(folder: Path) -> Iterator[str]:
    with Peer(make_identity(folder, "stranger", Role.COMPUTE), idle) as peer:
        yield peer.address


@contextlib.contextmanager
def denied(folder: Path) -> Iterator[str]:
    identity = make_identity(folder, "gpuhost", Role.COMPUTE)
    revoke(make_authority(folder).folder, party="gpuhost")
    make_identity(folder, "clinic", Role.TRUSTED)  # has fetched the list since
    with Peer(identity, idle) as peer:
        yield peer.address


Stranger = Callable[[Path], AbstractContextManager[str]]


@pytest.mark.parametrize(
    ("stranger", "why"),
    [
        (of_another_ca, "comes from the wrong CA; expected the CA of fed.example"),
        (expired, "role/compute expired at"),
        (not_yet_valid, "role/compute is not yet valid: it begins at"),
        (
            in_another_role,
            "peer is spiffe://fed.example/party/gpuhost/role/auditor, the wrong role",
        ),
        (of_another_name, "party/stranger/role/compute, the wrong name; expected spiffe://"),
        (denied, "is denied by the federation's deny-list number 1"),
    ],
)
def test_a_peer_that_is_not_the_one_is_refused_and_the_doctor_says_so_too(
    clinic: Clinic, stranger: Stranger, why: str
) -> None:
    with stranger(clinic.folder) as address:
        job = clinic.job(address)
        outcome = splitlearn("trusted", "train", job)
        examined = splitlearn("doctor", job)
    assert why in outcome.error
    assert outcome.code == IdentityError.exit_code
    failed = [line for line in examined.out.splitlines() if line.startswith("FAIL")]
    assert [line.split(":")[0] for line in failed] == ["FAIL  peer"]
    assert why in failed[0]
    assert "      -> " in examined.out
    assert examined.code == IdentityError.exit_code


def test_a_peer_of_another_ca_refuses_us_where_we_would_not_refuse_it(clinic: Clinic) -> None:
    """A clinic whose folder has the right CA file and a certificate of another federation."""
    foreign = make_identity(clinic.folder / "elsewhere", "clinic", Role.TRUSTED)
    with Peer(make_identity(clinic.folder, "gpuhost", Role.COMPUTE), idle) as peer:
        job = clinic.job(peer.address, identity={"folder": str(foreign.folder)})
        outcome = splitlearn("trusted", "train", job)
        examined = splitlearn("doctor", job)
    assert "wrong CA" in outcome.error
    assert (outcome.code, examined.code) == (4, 4)
    assert "FAIL  peer: " in examined.out


def test_a_peer_that_expects_another_party_says_so(clinic: Clinic) -> None:
    lab = make_identity(clinic.folder, "lab", Role.TRUSTED).name
    gpuhost = make_identity(clinic.folder, "gpuhost", Role.COMPUTE)
    with Peer(gpuhost, idle, expects=lab) as peer:
        job = clinic.job(peer.address)
        outcome = splitlearn("trusted", "train", job)
        examined = splitlearn("doctor", job)
    assert "compute.gpuhost.fed.example refused us and says: " in outcome.error
    assert "the wrong name; expected spiffe://fed.example/party/lab/role/trusted" in outcome.error
    assert outcome.code == IdentityError.exit_code
    assert all("the wrong name" in report for report in peer.reports)
    assert "FAIL  peer's opinion: compute.gpuhost.fed.example would refuse us and says: " in (
        examined.out
    )
    assert examined.code == IdentityError.exit_code


def test_a_listening_trusted_party_says_whom_it_turned_away(clinic: Clinic) -> None:
    stranger = make_identity(clinic.folder, "stranger", Role.COMPUTE)
    clinic_name = make_identity(clinic.folder, "clinic", Role.TRUSTED).name
    address = f"127.0.0.1:{free_port()}"
    peer = {"dial": None, "listen": address}
    job = clinic.job(peer=peer, run={"deadline_s": 3.0})
    with ThreadPoolExecutor(1) as other:
        dialled = other.submit(
            connect, address, identity=stranger, peer=clinic_name, deadline_s=WAIT_S
        )
        outcome = splitlearn("trusted", "train", job)
        with pytest.raises(IdentityError, match=r"refused us and says: .* the wrong name"):
            dialled.result(WAIT_S)
    turned_away = "peer is spiffe://fed.example/party/stranger/role/compute, the wrong name"
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("refused ")]
    assert turned_away in line
    assert "last refused: " in outcome.error
    assert turned_away in outcome.error
    assert outcome.code == ChannelError.exit_code


@pytest.mark.parametrize(
    ("begins", "why"), [(-2 * DAY, "expired at"), (DAY, "is not yet valid: it begins at")]
)
def test_our_own_certificate_is_looked_at_first(
    clinic: Clinic, begins: timedelta, why: str
) -> None:
    dates = {"not_before": NOW + begins, "not_after": NOW + begins + DAY}
    make_identity(clinic.folder, "clinic", Role.TRUSTED, **dates)
    for peer in ({}, {"dial": None, "listen": "127.0.0.1:0"}):
        job = clinic.job(peer=peer)
        outcome = splitlearn("trusted", "train", job)
        assert why in outcome.error
        assert outcome.code == IdentityError.exit_code
    examined = splitlearn("doctor", job)
    assert "FAIL  own certificate: " in examined.out
    assert why in examined.out
    assert examined.code == IdentityError.exit_code


@pytest.mark.parametrize(
    ("begins", "why"), [(-2 * DAY, "expired at"), (DAY, "is not yet valid: it begins at")]
)
def test_a_compute_party_whose_certificate_is_not_valid_does_not_begin_to_wait(
    tmp_path: Path, begins: timedelta, why: str
) -> None:
    dates = {"not_before": NOW + begins, "not_after": NOW + begins + DAY}
    make_identity(tmp_path, "gpuhost", Role.COMPUTE, **dates)
    for how in ('listen = "127.0.0.1:0"', 'dial = "127.0.0.1:9"'):
        outcome = splitlearn("compute", compute_settings(tmp_path, peer=how))
        assert why in outcome.error
        assert outcome.code == IdentityError.exit_code


def test_nobody_at_the_address_is_a_network_failure(clinic: Clinic) -> None:
    job = clinic.job(run={"deadline_s": 0.5})
    outcome = splitlearn("trusted", "train", job)
    assert "compute.gpuhost.fed.example did not answer at 127.0.0.1:9 within 0.5 s" in outcome.error
    assert outcome.code == ChannelError.exit_code
    examined = splitlearn("doctor", job)
    assert "FAIL  port: peer at 127.0.0.1:9 refuses connections" in examined.out
    assert examined.code == ChannelError.exit_code


# Another version of the protocol


async def answer_in_version_two(stream: ServerStream) -> None:
    ack = bytearray(handshake.encode_ack(handshake.Refused("protocol", "whatever")))
    ack[4] = 2
    await stream.write(bytes(ack))


def test_a_peer_that_speaks_another_version_is_refused(clinic: Clinic) -> None:
    gpuhost = make_identity(clinic.folder, "gpuhost", Role.COMPUTE)
    with bare_listener(gpuhost, answer_in_version_two) as address:
        job = clinic.job(address)
        outcome = splitlearn("trusted", "train", job)
        examined = splitlearn("doctor", job)
    why = "the peer speaks protocol 2, we speak 1; both sides have to run the same version"
    assert why in outcome.error
    assert outcome.code == PeerError.exit_code
    assert f"FAIL  peer's opinion: {why}" in examined.out
    assert examined.code == PeerError.exit_code


def test_where_all_is_well_the_doctor_finds_nothing(clinic: Clinic) -> None:
    gpuhost = make_identity(clinic.folder, "gpuhost", Role.COMPUTE)
    with Peer(
        gpuhost, idle, expects=make_identity(clinic.folder, "clinic", "trusted").name
    ) as peer:
        examined = splitlearn("doctor", clinic.job(peer.address))
    assert (examined.code, examined.err) == (0, "")
    assert [line.split(":")[0] for line in examined.out.splitlines()] == [
        *("ok    versions", "ok    identity folder", "ok    own certificate"),
        *("ok    port", "ok    peer", "ok    peer's opinion"),
    ]


def test_a_dialler_that_speaks_another_version_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = handshake.encode_hello

    def in_version_two(words: handshake.Hello) -> bytes:
        said = hello(words)
        return said[:4] + b"\x02" + said[5:]

    monkeypatch.setattr(handshake, "encode_hello", in_version_two)
    gpuhost = make_identity(tmp_path, "gpuhost", Role.COMPUTE)
    clinic = make_identity(tmp_path, "clinic", Role.TRUSTED)
    with Peer(gpuhost, idle) as peer:
        with pytest.raises(PeerError, match=r"refused us and says: the peer speaks protocol 2"):
            connect(peer.address, identity=clinic, peer=gpuhost.name, deadline_s=PROMPT_S)
        assert "the peer speaks protocol 2, we speak 1" in peer.reports[0]


def test_the_doctor_compares_versions_with_the_registrar(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(clinic.folder)
    with Registrar(authority.folder, port=0) as registrar:
        make_identity(clinic.folder, "clinic", Role.TRUSTED, registrar=registrar.address)
        monkeypatch.setattr("splitlearn.identity.diagnose.exchange.software_version", other())
        examined = splitlearn("doctor", "--folder", clinic.folder / "clinic-trusted")
    assert "FAIL  registrar's version: splitlearn 9.9" in examined.out
    assert examined.code == 2


def other() -> Callable[[], str]:
    """Says another version every second time: once here, once at the registrar."""
    said = iter(("9.9", "0.1", "9.9", "0.1", "9.9"))
    return lambda: next(said)


# Tokens


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[Registrar]:
    with Registrar(make_authority(tmp_path).folder, port=0) as serving:
        yield serving


def join(token: str, registrar: Registrar, folder: Path) -> tuple[int, str]:
    """`splitlearn join` in a process of its own; its exit code and what it said."""
    command = ("join", token, "--registrar", registrar.address, "--folder", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "parties.cli", *command],
        cwd=Path(cli.__file__).parents[1],
        env={**os.environ, "COLUMNS": "40"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return done.returncode, done.stderr


def the_one_error(said: str) -> str:
    (line,) = said.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_token_is_good_once(tmp_path: Path, registrar: Registrar) -> None:
    token = invite(registrar.authority.folder, party="bank", role=Role.COMPUTE)
    assert join(token, registrar, tmp_path / "mine")[0] == 0
    code, said = join(token, registrar, tmp_path / "another")
    assert "join token for compute bank was used at" in the_one_error(said)
    assert code == IdentityError.exit_code
    assert not (tmp_path / "another" / "certificate.pem").exists()


def test_a_token_that_waited_too_long_is_refused(tmp_path: Path, registrar: Registrar) -> None:
    token = invite(
        registrar.authority.folder, party="bank", role=Role.COMPUTE, ttl_s=60, now=NOW - DAY
    )
    code, said = join(token, registrar, tmp_path / "mine")
    assert "join token for compute bank expired at" in the_one_error(said)
    assert "ask for a new invitation" in said
    assert code == IdentityError.exit_code


def test_a_token_goes_to_no_registrar_of_another_ca(tmp_path: Path, registrar: Registrar) -> None:
    elsewhere = make_authority(tmp_path / "elsewhere")
    token = invite(elsewhere.folder, party="bank", role=Role.COMPUTE)
    outcome = splitlearn(
        "join", token, "--registrar", registrar.address, "--folder", tmp_path / "b"
    )
    assert "CA" in outcome.error
    assert token.split(".")[2] not in outcome.err
    assert outcome.code == IdentityError.exit_code


def test_what_is_no_token_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    outcome = splitlearn("join", "sl1.nonsense", "--folder", tmp_path / "mine")
    assert "this is not a join token" in outcome.error
    assert "nonsense" not in outcome.error
    assert outcome.code == 2


def test_a_registrar_that_is_not_there_is_a_network_failure(tmp_path: Path) -> None:
    token = invite(make_authority(tmp_path).folder, party="bank", role=Role.COMPUTE)
    outcome = splitlearn("join", token, "--registrar", "127.0.0.1:9", "--folder", tmp_path / "b")
    assert "127.0.0.1:9" in outcome.error
    assert outcome.code == ChannelError.exit_code


def compute_settings(folder: Path, *, peer: str) -> Path:
    path = folder / "compute.toml"
    policies = Path(cli.__file__).parent / "policies"
    path.write_text(
        f'[run]\nfolder = "runs"\n[identity]\nfolder = "gpuhost-compute"\n'
        f'[peer]\nparty = "clinic"\n{peer}\n[policy]\nfile = "{policies / "compute.toml"}"\n'
    )
    return path

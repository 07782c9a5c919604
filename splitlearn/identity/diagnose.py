"""Why do two parties not connect? One check per cause, each with a finding and a remedy.

gRPC says UNAVAILABLE whatever is wrong; a plain TLS handshake here says what: port, TLS version,
whose certificate, which name, whose clock. Nothing is changed, and nothing but certificates is sent.
"""

import errno
import platform
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from splitlearn.errors import IdentityError, ManifestError, SplitLearnError
from splitlearn.identity import exchange, files, tls
from splitlearn.identity.certificates import BACKDATE
from splitlearn.identity.judge import Peer, authorise, check_dates
from splitlearn.identity.names import PartyName, registrar_name
from splitlearn.identity.party import KEY_FILE, LOG_KEY_FILE, Identity
from splitlearn.roles import Role

__all__ = [
    "Finding",
    "check_clock",
    "check_dates_of",
    "check_folder",
    "check_handshake",
    "check_listen",
    "check_port",
    "check_versions",
    "examine",
    "probe",
]


@dataclass(frozen=True)
class Finding:
    """One check's result. what: what was found; remedy: what to do, empty where all is well.

    exit_code: of the error that the same cause would raise in a run; 0 where all is well.
    """

    name: str
    ok: bool
    what: str
    remedy: str = ""
    exit_code: int = 0


def examine(
    folder: Path,
    *,
    now: datetime,
    address: str | None = None,
    expected: PartyName | None = None,
    deadline_s: float = exchange.DEADLINE_S,
) -> tuple[Finding, ...]:
    """All checks that apply, in the order in which a connection needs them; each within deadline_s.

    address: "host:port" of a peer that listens, if there is one. expected: who should answer there.
    """
    findings = [check_versions(), check_folder(folder)]
    if not findings[-1].ok:
        return tuple(findings)
    identity = Identity.load(folder)
    findings.append(check_dates_of(identity, now=now))
    if identity.registrar is not None:
        findings += check_clock(identity, deadline_s=deadline_s)
    if address is not None:
        findings.append(check_port(address, deadline_s=deadline_s))
        if findings[-1].ok:
            findings.append(
                check_handshake(
                    identity, address=address, expected=expected, now=now, deadline_s=deadline_s
                )
            )
    return tuple(findings)


def check_folder(folder: Path) -> Finding:
    """Is the folder complete, closed to others, and do keys, certificate and CA belong together?"""
    name = "identity folder"
    try:
        mode = files.mode_of(folder)
        identity = Identity.load(folder)
    except SplitLearnError as error:
        remedy = "join again with a new token, or mend what the sentence names"
        return _failed(name, error, remedy=remedy)
    if mode & 0o077:
        opened = ManifestError(f"{folder} has mode {mode:04o}, open to other users; expected 0700")
        return _failed(name, opened, remedy=f"chmod 700 {folder}")
    what = f"{identity.name.uri}; {KEY_FILE} and {LOG_KEY_FILE} are closed and fit the certificate"
    return Finding(name=name, ok=True, what=what)


def check_dates_of(identity: Identity, *, now: datetime) -> Finding:
    """Is the own certificate valid by the clock here?"""
    remedy = "set the clock right; if it is, join again with a new token"

    def dates() -> str:
        check_dates(identity.certificate, whose=f"certificate in {identity.folder}", now=now)
        return f"valid until {identity.certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC"

    return _tried("own certificate", dates, remedy=remedy)


def check_clock(
    identity: Identity, *, deadline_s: float = exchange.DEADLINE_S
) -> tuple[Finding, ...]:
    """Does the registrar answer, do both clocks agree, and is its software as new as ours?

    Certificates are backdated by ten minutes; a clock that is later behind than that refuses fresh
    ones. The registrar's own dates are not checked here, for the clock is what is in question.
    """
    remedy = "start splitlearn federation serve there, or open the port; then try again"
    try:
        client = exchange.Client(
            address=identity.registrar or "",
            context=tls.client_context(ca_pem=identity.ca_pem, check_dates=False),
            server_name=registrar_name(identity.name.federation).dns,
        )
        asked = time.time()
        body = client.get("/v1/time", deadline_s=deadline_s)
        midway = (asked + time.time()) / 2
        there = exchange.decode(body, type=exchange.Now, whose="the registrar's time")
    except SplitLearnError as error:
        return (_failed("registrar", error, remedy=remedy),)
    reached = Finding(name="registrar", ok=True, what=f"answers at {identity.registrar}")
    return reached, _compare_clocks(midway - there.time), _compare_versions(there.version)


def check_port(address: str, *, deadline_s: float = exchange.DEADLINE_S) -> Finding:
    """Does anything accept a TCP connection on `address`?"""
    remedy = (
        "start the peer first, check host and port in its command, open the port in the firewall"
    )

    def connect() -> str:
        deadline = time.monotonic() + deadline_s
        tls.connect(address, deadline=deadline, whom="peer").close()
        return f"{address} accepts connections"

    return _tried("port", connect, remedy=remedy)


def check_listen(address: str) -> Finding:
    """Can this machine listen on `address`, or does somebody do so already?"""
    host, port = tls.parse_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    name = "own port"
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what = f"{address} is in use: by this party's own process, or else by another program"
            return Finding(name=name, ok=True, what=what)
        refused = ManifestError(f"this machine cannot listen on {address}: {error.strerror}")
        return _failed(name, refused, remedy="choose an address of this machine, or 0.0.0.0")
    return Finding(name=name, ok=True, what=f"{address} is free to listen on")


def check_handshake(
    identity: Identity,
    *,
    address: str,
    expected: PartyName | None,
    now: datetime,
    deadline_s: float = exchange.DEADLINE_S,
) -> Finding:
    """Do peer and we accept one another's certificates?"""

    def shake_hands() -> str:
        peer = probe(address, identity=identity, expected=expected, now=now, deadline_s=deadline_s)
        return f"{peer.name.uri} answers over TLS 1.3 and accepts our certificate"

    remedy = "compare CA, clocks and names with the people who run the other side"
    return _tried("peer", shake_hands, remedy=remedy)


def check_versions() -> Finding:
    """Can this installation do what is asked of it?"""
    found = (
        f"splitlearn {exchange.software_version()}, Python {platform.python_version()}, "
        f"{ssl.OPENSSL_VERSION}"
    )
    if sys.version_info < (3, 11) or not ssl.HAS_TLSv1_3:
        error = ManifestError(f"{found}; expected Python 3.11 or newer with TLS 1.3")
        return _failed("versions", error, remedy="install a newer Python")
    return Finding(name="versions", ok=True, what=found)


def probe(
    address: str,
    *,
    identity: Identity,
    expected: PartyName | None,
    now: datetime,
    deadline_s: float = exchange.DEADLINE_S,
) -> Peer:
    """Shake hands with the peer that listens on `address` as gRPC would; return who it is.

    Raises IdentityError that names the reason where either side refuses the other's certificate, or
    ChannelError where nobody answers. A peer that is merely silent after the handshake passes.
    """
    deadline = time.monotonic() + deadline_s
    check_dates(identity.certificate, whose=f"certificate in {identity.folder}", now=now)
    # A server that refuses us closes without an alert, and so does one that is killed just now. The
    # second try tells them apart: nobody answers it where the server is gone.
    for _ in range(2):
        peer = _shake_hands(
            address, identity=identity, expected=expected, now=now, deadline=deadline
        )
        if peer is not None:
            return peer
    raise IdentityError(
        f"peer at {address} closed the connection on seeing our certificate: it trusts "
        "another CA, or by its clock ours is not valid; run splitlearn doctor there"
    )


# A server's verdict on our certificate takes one round trip; two seconds bridge a bad line.
_VERDICT_S = 2.0
# Certificates are backdated by this much, so a clock that is off by less harms nobody.
_MAX_SKEW_S = BACKDATE.total_seconds()


def _shake_hands(
    address: str,
    *,
    identity: Identity,
    expected: PartyName | None,
    now: datetime,
    deadline: float,
) -> Peer | None:
    """Who answers, or None where it closed the connection when it had seen our certificate."""
    # Trusts nobody: the peer's certificate is judged below, by the same rules as in a run.
    context = tls.client_context(ca_pem=None, folder=identity.folder)
    context.set_alpn_protocols(["h2"])
    with tls.open_tls(
        address,
        context=context,
        server_name=expected.dns if expected else None,
        deadline=deadline,
        whom="peer",
    ) as connection:
        peer = authorise(
            connection.getpeercert(binary_form=True) or b"",
            ca=identity.ca,
            expected=expected,
            federation=identity.name.federation,
            roles=frozenset(Role),
            denied=identity.denied,
            now=now,
        )
        # In TLS 1.3 a server judges our certificate when our side of the handshake is over. gRPC
        # speaks first (its SETTINGS), so the first byte says that we were accepted.
        connection.settimeout(max(min(deadline - time.monotonic(), _VERDICT_S), 0.001))
        try:
            return peer if connection.recv(1) else None
        except TimeoutError:
            return peer
        except ConnectionError:
            return None
        except OSError as error:
            raise tls.explain(error, whom="peer", address=address) from None


def _compare_clocks(ahead_s: float) -> Finding:
    what = f"clock here is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the registrar's"
    if abs(ahead_s) > _MAX_SKEW_S:
        skew = IdentityError(f"{what}; expected at most {_MAX_SKEW_S:.0f} s")
        return _failed("clock", skew, remedy="set this machine's clock by a time server")
    return Finding(name="clock", ok=True, what=what)


def _compare_versions(there: str) -> Finding:
    here = exchange.software_version()
    if there != here:
        shown = "".join(c if c.isprintable() else "?" for c in there)
        error = ManifestError(f"splitlearn {here} here, {shown} at the registrar")
        return _failed("registrar's version", error, remedy="install the same version everywhere")
    return Finding(name="registrar's version", ok=True, what=f"{there}, the same as here")


def _tried(name: str, act: Callable[[], str], *, remedy: str) -> Finding:
    try:
        return Finding(name=name, ok=True, what=act())
    except SplitLearnError as error:
        return _failed(name, error, remedy=remedy)


def _failed(name: str, error: SplitLearnError, *, remedy: str) -> Finding:
    return Finding(name=name, ok=False, what=str(error), remedy=remedy, exit_code=error.exit_code)

"""The registrar: the one service of a federation. It turns tokens into certificates and renews them.

    GET  /v1/ca      the CA's certificate, to be checked against the token's pin
    POST /v1/join    token and request in, certificate out; one use
    POST /v1/renew   over a connection that shows a valid certificate; same name, same keys
    GET  /v1/denied  the signed deny-list
    GET  /v1/time    for clocks that differ

TLS 1.3 only, one question a connection, bounded bodies, a deadline for each connection and a bound on
how many are open. It sees public keys and tokens, never a party's data or private key.
"""

import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from splitlearn.errors import IdentityError, ManifestError, PeerError, SplitLearnError
from splitlearn.identity import certificates, exchange, tls
from splitlearn.identity.authority import Authority
from splitlearn.identity.judge import authorise
from splitlearn.identity.names import PartyName, registrar_name
from splitlearn.identity.party import Identity, Keys
from splitlearn.identity.serving import Answer, Server
from splitlearn.identity.tokens import redeem
from splitlearn.roles import Role

__all__ = ["REGISTRAR_PORT", "Registrar"]

REGISTRAR_PORT = 8470


class Registrar:
    """Serves a federation folder on host:port; port 0 takes a free one.

    advertised: "host:port" that parties are told to dial, where it is not host:port itself.
    report: gets one line per event, for an operator's terminal; never a secret.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = REGISTRAR_PORT,
        advertised: str | None = None,
        report: Callable[[str], None] = lambda _line: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.authority = Authority.open(folder)
        self._clock = clock
        self._report = report
        self._identity = self._own_identity()
        self._context = self._own_context()
        try:
            self._server = Server((host, port), service=self)
        except (OSError, OverflowError) as error:
            raise ManifestError(f"registrar cannot listen on {host}:{port}: {error}") from None
        self.port: int = self._server.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self.port}"
        self.authority.serves_at(advertised or self.address)
        self._thread: threading.Thread | None = None
        self._served = False

    def serve_forever(self) -> None:
        """Serve until `close` is called from another thread, or until Ctrl-C."""
        self._served = True
        self._server.serve_forever(poll_interval=0.1)

    def start(self) -> "Registrar":
        """Serve in a background thread; return self."""
        self._served = True
        self._thread = threading.Thread(target=self.serve_forever, name="registrar", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and free the port."""
        if self._served:
            self._server.shutdown()
        if self._thread is not None:
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> "Registrar":
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def context(self) -> ssl.SSLContext:
        """TLS context with our own certificate, which is replaced at two thirds of its life."""
        begins = self._identity.certificate.not_valid_before_utc
        ends = self._identity.certificate.not_valid_after_utc
        if self._clock() > begins + (ends - begins) * 2 / 3:
            self._identity = self._own_identity()
            self._context = self._own_context()
        return self._context

    def answer(self, method: str, path: str, *, body: bytes, certificate: bytes | None) -> Answer:
        """What a question gets. certificate: DER that the client showed over TLS, if it did."""
        act = self._ROUTES.get((method, path))
        if act is None:
            sentence = f"there is no {method} {path[:80]} here"
            return Answer.refusal(sentence, status=HTTPStatus.NOT_FOUND)
        try:
            return Answer(status=HTTPStatus.OK, body=act(self, body, certificate))
        except PeerError as error:
            self._report(f"refused {path}: {error}")
            return Answer.refusal(str(error), status=HTTPStatus.FORBIDDEN)
        except SplitLearnError as error:
            # What is wrong in our own folder is for our own terminal only.
            self._report(f"failed {path}: {error}")
            sentence = "the registrar has a problem of its own; tell its people"
            return Answer.refusal(sentence, status=HTTPStatus.INTERNAL_SERVER_ERROR)

    def fault(self, kind: str) -> None:
        """One connection ended in a fault of ours; the next is served all the same."""
        self._report(f"fault: {kind} in one connection")

    def _own_context(self) -> ssl.SSLContext:
        return tls.server_context(ca_pem=self._identity.ca_pem, folder=self._identity.folder)

    def _own_identity(self) -> Identity:
        folder = self.authority.folder / "registrar"
        keys = Keys.obtain(folder)
        leaf = self.authority.issue(
            registrar_name(self.authority.federation),
            public_key=keys.certificate.public_key(),
            log_public=keys.log.public_key().public_bytes_raw(),
            now=self._clock(),
        )
        return Identity.establish(
            folder,
            certificate=certificates.pem(leaf),
            ca=certificates.pem(self.authority.ca),
            denied=self.authority.denied_json,
            registrar=None,
        )

    def _ca(self, _body: bytes, _certificate: bytes | None) -> bytes:
        return certificates.pem(self.authority.ca)

    def _denied(self, _body: bytes, _certificate: bytes | None) -> bytes:
        return self.authority.denied_json

    def _time(self, _body: bytes, _certificate: bytes | None) -> bytes:
        now = exchange.Now(time=self._clock().timestamp(), version=exchange.software_version())
        return msgspec.json.encode(now)

    def _join(self, body: bytes, _certificate: bytes | None) -> bytes:
        ask = exchange.decode(body, type=exchange.Join, whose="join request")
        request = certificates.Request(ask.csr.encode(), ask.log_public, ask.log_proof)
        # Before the token, so that a broken request does not use it up.
        public_key = certificates.read_request(request)
        name = redeem(
            self.authority.folder,
            token_id=ask.id,
            secret=ask.secret,
            federation=self.authority.federation,
            expected=ask.name,
            now=self._clock(),
        )
        return self._grant(name, public_key=public_key, log_public=request.log_public)

    def _renew(self, body: bytes, certificate: bytes | None) -> bytes:
        if certificate is None:
            raise IdentityError("renewal needs a connection that shows the certificate in use")
        peer = authorise(
            certificate,
            ca=self.authority.ca,
            expected=None,
            federation=self.authority.federation,
            roles=frozenset(Role) - {Role.REGISTRAR},
            denied=self.authority.denied,
            now=self._clock(),
        )
        ask = exchange.decode(body, type=exchange.Renew, whose="renewal request")
        request = certificates.Request(ask.csr.encode(), ask.log_public, ask.log_proof)
        public_key = certificates.read_request(request)
        current = certificates.read_der(certificate, whose="certificate in use").public_key()
        if public_key != current or request.log_public != peer.log_public:
            raise IdentityError("renewal is for the same keys only; new keys need a new invitation")
        return self._grant(peer.name, public_key=public_key, log_public=peer.log_public)

    def _grant(
        self, name: PartyName, *, public_key: ec.EllipticCurvePublicKey, log_public: bytes
    ) -> bytes:
        leaf = self.authority.issue(
            name, public_key=public_key, log_public=log_public, now=self._clock()
        )
        self._report(f"certified {name.uri}, serial {leaf.serial_number:x}")
        grant = exchange.Grant(
            certificate=certificates.pem(leaf).decode("ascii"),
            denied=msgspec.Raw(self.authority.denied_json),
        )
        return msgspec.json.encode(grant)

    # The questions there are. Any other gets "not found", whatever its method.
    _ROUTES: ClassVar = {
        ("GET", "/v1/ca"): _ca,
        ("GET", "/v1/denied"): _denied,
        ("GET", "/v1/time"): _time,
        ("POST", "/v1/join"): _join,
        ("POST", "/v1/renew"): _renew,
    }

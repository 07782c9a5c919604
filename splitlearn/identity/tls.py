"""TLS 1.3 for talking to a registrar or examining a peer, and its failures in plain words.

OpenSSL's errors are codes and alerts; here they become one sentence that names the reason. gRPC's
own TLS lives in the channel room; what it does not tell, `diagnose` finds out with this.
"""

import errno
import socket
import ssl
import time
from pathlib import Path
from typing import Any

from splitlearn.errors import ChannelError, IdentityError, ManifestError, SplitLearnError

__all__ = ["client_context", "connect", "explain", "open_tls", "parse_address", "server_context"]


def client_context(
    *,
    ca_pem: bytes | None,
    folder: Path | None = None,
    check_dates: bool = True,
) -> ssl.SSLContext:
    """A dialler's TLS 1.3 context.

    ca_pem: the only CA to trust, or None to look at a peer without trusting it: the caller then
    judges the certificate itself. folder: where party.crt and party.key lie, to present them.
    check_dates: False only to learn a registrar's time when the clocks may differ.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = _Socket
    if ca_pem is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    if not check_dates:
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    if folder is not None:
        _present(context, folder=folder)
    return context


def server_context(*, ca_pem: bytes, folder: Path) -> ssl.SSLContext:
    """A registrar's TLS 1.3 context. A client may show a certificate; if it does, `ca_pem` signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = _Socket
    context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    context.verify_mode = ssl.CERT_OPTIONAL
    _present(context, folder=folder)
    return context


def parse_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port". Raises ManifestError.

    >>> parse_address("[::1]:8470")
    ('::1', 8470)
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if (
        not colon
        or not bare
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 1 << 16
    ):
        raise ManifestError(f"address {address[:160]!r}: expected HOST:PORT, as in 10.0.0.5:8470")
    return bare, int(port)


def connect(address: str, *, deadline: float, whom: str) -> socket.socket:
    """Connect to "host:port" before `deadline` (on time.monotonic's clock). Raises ChannelError."""
    host, port = parse_address(address)
    try:
        return socket.create_connection((host, port), timeout=_left(deadline))
    except (OSError, UnicodeError) as error:
        raise explain(error, whom=whom, address=address) from None


def open_tls(
    address: str, *, context: ssl.SSLContext, server_name: str | None, deadline: float, whom: str
) -> ssl.SSLSocket:
    """Connect and shake hands before `deadline` (on time.monotonic's clock).

    whom: how a sentence calls the other side. Raises ChannelError or IdentityError.
    """
    plain = connect(address, deadline=deadline, whom=whom)
    try:
        plain.settimeout(_left(deadline))
        return context.wrap_socket(plain, server_hostname=server_name)
    except (OSError, ValueError) as error:
        raise explain(error, whom=whom, address=address) from None
    finally:
        # wrap_socket has taken the descriptor over where it succeeded, or closed it where not.
        plain.close()


def explain(error: Exception, *, whom: str, address: str) -> SplitLearnError:
    """The sentence for an error of the network or of TLS: IdentityError or ChannelError."""
    who = f"{whom} at {address}"
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = _VERIFY.get(error.verify_code, f"does not verify: {error.verify_message}")
        return IdentityError(f"certificate of {who} {reason}")
    if isinstance(error, ssl.SSLError):
        for word, sentence in _ALERTS.items():
            if word in (error.reason or ""):
                return IdentityError(f"{who} {sentence}")
        return ChannelError(
            f"{who} broke the TLS handshake off: {error.reason or 'no reason given'}"
        )
    if isinstance(error, socket.gaierror):
        return ChannelError(f"{who} cannot be found: no such host; check the address")
    if isinstance(error, TimeoutError):
        return ChannelError(f"{who} did not answer in time; a firewall, or the wrong address?")
    if isinstance(error, ConnectionRefusedError):
        return ChannelError(f"{who} refuses connections: nothing listens on that port")
    if isinstance(error, ConnectionError):
        return ChannelError(f"{who} closed the connection")
    told = error.strerror if isinstance(error, OSError) else None
    return ChannelError(f"{who} cannot be reached: {told or type(error).__name__}")


class _Socket(ssl.SSLSocket):
    """A TLS socket that is closed where the other side is gone before the handshake.

    Python's own would be left open then, until it is collected.
    """

    def getpeername(self) -> Any:
        """Address of the other side; asked for first when a connection is wrapped."""
        try:
            return super().getpeername()
        except OSError:
            self.close()
            raise ConnectionResetError(errno.ECONNRESET, "gone before the handshake") from None


# X509_V_FLAG_NO_CHECK_TIME of OpenSSL; Python's ssl has no name for it.
_NO_CHECK_TIME = 0x200000

# X509_V_ERR_* of OpenSSL (x509_vfy.h).
_VERIFY = {
    7: "comes from the wrong CA: its signature is another's",
    9: "is not yet valid; compare the two clocks",
    10: "has expired; its owner has to renew it",
    18: "comes from the wrong CA: it signed itself",
    19: "comes from the wrong CA: not the one that you joined",
    20: "comes from the wrong CA: not the one that you joined",
    21: "comes from the wrong CA: not the one that you joined",
    62: "names somebody else; is that the right address?",
}

# Alerts that the other side sends about us, and handshakes that are none, by OpenSSL's reason.
_ALERTS = {
    "CERTIFICATE_EXPIRED": "refuses our certificate: it has expired, or the clocks differ",
    "CERTIFICATE_REVOKED": "refuses our certificate: it is revoked",
    "CERTIFICATE_REQUIRED": "wants a certificate and was shown none",
    "UNKNOWN_CA": "refuses our certificate: it trusts another CA than the one that we joined",
    "BAD_CERTIFICATE": "refuses our certificate: bad, not yet valid, or of another CA",
    "CERTIFICATE_UNKNOWN": "refuses our certificate: not yet valid, or of another CA",
    "UNSUPPORTED_CERTIFICATE": "refuses our certificate: of the wrong kind",
    "ACCESS_DENIED": "refuses our certificate: denied",
    "DECRYPT_ERROR": "refuses our certificate: its signature did not verify",
    "WRONG_VERSION_NUMBER": "speaks no TLS: is that the right port?",
    "HTTP_REQUEST": "speaks no TLS: is that the right port?",
    "PROTOCOL_VERSION": "does not speak TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "does not speak TLS 1.3",
}


def _present(context: ssl.SSLContext, *, folder: Path) -> None:
    certificate, key = folder / "party.crt", folder / "party.key"
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError):
        raise IdentityError(f"{certificate} and {key} are no pair that TLS accepts") from None


def _left(deadline: float) -> float:
    """Seconds until `deadline`; never 0, which would mean not to wait and not to block."""
    return max(deadline - time.monotonic(), 0.001)

"""Would a coordinator take this node? One question over the same TLS, before Flower asks anything.

Flower's node signs the time with its key. Where the clocks differ by more than Flower allows it ends
without a word and with exit code 0; here the difference is found out first, and named.
"""

import ssl
import time
from datetime import UTC, datetime

from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.guard import HEALTH_PATH, Health
from splitlearn.errors import IdentityError
from splitlearn.identity import PartyName, authorise
from splitlearn.identity.exchange import DEADLINE_S, Client, decode
from splitlearn.identity.tls import client_context
from splitlearn.roles import Role

__all__ = ["AHEAD_S", "BEHIND_S", "ask_health", "check_clock", "coordinator_context"]

# What a node's clock may be ahead of and behind the SuperLink's: SYSTEM_TIME_TOLERANCE, and with it
# TIMESTAMP_TOLERANCE, of flwr.common.constant.
AHEAD_S = 5.0
BEHIND_S = 305.0


def ask_health(
    address: str,
    *,
    fresh: FreshIdentity,
    party: str | None = None,
    deadline_s: float = DEADLINE_S,
) -> float:
    """Seconds that the clock here is ahead of the coordinator's, which would take this node.

    Raises ChannelError (nobody there), IdentityError (it is not our coordinator, or refuses us).
    """
    client = Client(
        address=address,
        context=coordinator_context(fresh, party=party),
        server_name=None,
        whom="coordinator",
    )
    asked = time.time()
    body = client.get(HEALTH_PATH, deadline_s=deadline_s)
    midway = (asked + time.time()) / 2
    there = decode(body, type=Health, whose=f"answer of the coordinator at {address}")
    return midway - there.time


def check_clock(ahead_s: float) -> str:
    """Say in words how the clocks differ. Raises IdentityError where Flower would not take it."""
    what = (
        f"clock here is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} "
        "the coordinator's"
    )
    if not -BEHIND_S < ahead_s < AHEAD_S:
        raise IdentityError(
            f"{what}; a node's may be at most {AHEAD_S:.0f} s ahead and {BEHIND_S:.0f} s behind: set "
            "this machine's clock by a time server"
        )
    return what


def coordinator_context(fresh: FreshIdentity, *, party: str | None = None) -> ssl.SSLContext:
    """A node's TLS 1.3: presents our certificate, accepts a discriminator of our federation only.

    party: its name, where only one may answer. Any address will do: names are in certificates.
    """
    identity, _ = fresh.now()
    context = client_context(ca_pem=identity.ca_pem)
    context.check_hostname = False
    expected = None
    if party is not None:
        federation = identity.name.federation
        expected = PartyName(federation=federation, party=party, role=Role.DISCRIMINATOR)
    base = context.sslsocket_class

    class Judging(base):  # type: ignore[misc, valid-type]
        """Judges the peer when the handshake is over, and before anything is sent."""

        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            try:
                _judge(self.getpeercert(binary_form=True) or b"", fresh=fresh, expected=expected)
            except IdentityError as error:
                self.close()
                # What TLS libraries and `tls.explain` know how to pass on.
                refusal = ssl.SSLCertVerificationError(f"certificate refused: {error}")
                refusal.verify_code = 1
                refusal.verify_message = str(error)
                raise refusal from None

    context.sslsocket_class = Judging
    return fresh.presented_by(context)


def _judge(der: bytes, *, fresh: FreshIdentity, expected: PartyName | None) -> None:
    identity, denied = fresh.now()
    authorise(
        der,
        ca=identity.ca,
        expected=expected,
        federation=identity.name.federation,
        roles=frozenset({Role.DISCRIMINATOR}),
        denied=denied,
        now=datetime.now(UTC),
    )

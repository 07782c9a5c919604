"""Asking a listener what it thinks of us, without a conversation: what `splitlearn doctor` does last.

TLS shows certificates and nothing else. Whether the listener speaks our protocol, and whether it takes
a party of our name and role, is only said in answer to a HELLO.
"""

import asyncio
import secrets

from splitlearn.channel import handshake
from splitlearn.channel.handshake import Hello, Refused, quoted
from splitlearn.channel.loop import LoopThread
from splitlearn.channel.mailbox import DEFAULT_WINDOW
from splitlearn.channel.streams import FRAMES, Connection, LinkLost
from splitlearn.errors import ChannelError, IdentityError, PeerError
from splitlearn.identity import Identity, PartyName

__all__ = ["inquire"]


def inquire(address: str, *, identity: Identity, peer: PartyName, deadline_s: float) -> None:
    """Return if the listener at `address` ("host:port") would take us; it keeps nothing of it.

    The HELLO is for a party that cannot be, so a listener with nothing against us says just that.

    Raises:
        ChannelError: no answer within `deadline_s`.
        IdentityError: it does not take our name, role or certificate.
        PeerError: it speaks another protocol, or none.
    """
    loop = LoopThread(f"inquiry at {peer.dns}")
    try:
        answer = loop.run(_ask(address, identity=identity, peer=peer), timeout_s=deadline_s)
    except LinkLost as lost:
        raise ChannelError(f"{peer.dns} at {address} gave no answer to a HELLO: {lost}") from None
    finally:
        loop.close()
    if answer is None:
        raise ChannelError(f"{peer.dns} at {address} hung up on a HELLO")
    verdict = handshake.decode_ack(answer)
    if not isinstance(verdict, Refused):
        raise PeerError(f"{peer.dns} at {address} took a HELLO that was not for it")
    if verdict.code in _NOTHING_AGAINST_US:
        return
    error = IdentityError if verdict.code in {"identity", "role"} else PeerError
    raise error(f"{peer.dns} would refuse us and says: {quoted(verdict.sentence)}")


# "name" is what we asked for; the other two say that it had other things to do.
_NOTHING_AGAINST_US = frozenset({"name", "busy", "closed"})
# No party has this URI: names of parties follow "/party/".
_NOBODY = "spiffe://{federation}/doctor"


async def _ask(address: str, *, identity: Identity, peer: PartyName) -> bytes | None:
    hello = Hello(
        federation=identity.name.federation,
        party=identity.name.party,
        role=identity.name.role,
        expects=_NOBODY.format(federation=peer.federation),
        run="",
        incarnation=secrets.token_hex(16),
        listener="",
        received=0,
        window=DEFAULT_WINDOW,
        nonce=secrets.token_bytes(16),
    )
    connection = Connection(address, identity=identity, peer=peer, method=FRAMES)
    try:
        await connection.write(handshake.encode_hello(hello))
        return await connection.read()
    finally:
        await asyncio.shield(connection.close())

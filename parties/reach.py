"""Getting hold of the one peer that a settings file names: dial it, or wait until it dials."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from splitlearn.errors import ChannelError, ManifestError, PeerError, SplitLearnError
from splitlearn.roles import Role

if TYPE_CHECKING:
    from splitlearn.channel import Conversation, Listener
    from splitlearn.identity import Identity
    from splitlearn.manifest.fields import PeerTable

__all__ = ["Closing", "Reach", "farewell"]

# Seconds. How long one try to dial lasts before whoever waits is told that it still waits.
_TRY_S = 20.0


class Closing(Protocol):
    """What is said farewell to: a channel, or whatever holds one."""

    def close(self, *, reason: str | None = None) -> None: ...


class Reach:
    """Finds one peer, again and again where that is asked for; one process is one incarnation.

    While it is open the certificate and the deny-list on disk are kept fresh, and used from there.
    """

    def __init__(
        self, identity: "Identity", *, peer: "PeerTable", role: Role, fresh: bool = True
    ) -> None:
        """fresh: whether to keep the certificate fresh; of several at once, one is enough."""
        from splitlearn.identity import PartyName

        self.name: PartyName = PartyName(
            federation=identity.name.federation, party=peer.party, role=role
        )
        self._identity, self._peer = identity, peer
        self._fresh = fresh
        self._incarnation = secrets.token_hex(16)
        self._listener: Listener | None = None
        self._open = ExitStack()

    def __enter__(self) -> "Reach":
        from splitlearn.identity import kept_fresh

        if self._fresh:
            self._open.enter_context(kept_fresh(self._identity, report=_say))
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.close()
        self._open.close()

    def find(self, *, run: str, deadline_s: float) -> "Conversation":
        """A channel to the peer. ChannelError if it could not be had within `deadline_s`."""
        from splitlearn.channel import Listener, connect
        from splitlearn.identity import renew_if_due

        identity = self._identity = renew_if_due(self._identity, now=datetime.now(UTC))
        if self._peer.dial is not None:
            return connect(
                str(self._peer.dial),
                identity=identity,
                peer=self.name,
                run=run,
                incarnation=self._incarnation,
                deadline_s=deadline_s,
            )
        if self._listener is None:
            if self._peer.listen is None:
                raise ManifestError("[peer] names neither dial nor listen")
            self._listener = Listener(
                str(self._peer.listen),
                identity=identity,
                expect_roles=frozenset({self.name.role}),
                peer=self.name,
                run=run,
                incarnation=self._incarnation,
                report=_say,
            )
            _say(f"listening on port {self._listener.port}")
        return self._listener.accept(timeout_s=deadline_s)

    def meet(self, *, about: str, deadline_s: float) -> "Conversation":
        """A channel to the peer about nothing but `about`, as a new process in its eyes.

        Where we listen it may be about something else that the peer still has to say: its run tells.
        """
        self.anew()
        return self.find(run=about if self._peer.dial is not None else "", deadline_s=deadline_s)

    def anew(self) -> None:
        """To whom we dial from now on we come as a new process, with nothing under way."""
        self._incarnation = secrets.token_hex(16)

    def find_patiently(self, *, run: str) -> "Conversation":
        """As `find`, for as long as it takes; a peer that is not there yet is no error."""
        while True:
            try:
                return self.find(run=run, deadline_s=_TRY_S)
            except ChannelError:
                continue


@contextmanager
def farewell(channel: Closing) -> Iterator[None]:
    """Close the channel at the end, telling the peer why if it ended badly.

    What the peer did wrong it is told in full. Of our own troubles it hears the kind only: no
    sentence that might quote something of ours goes out beside the gate.
    """
    try:
        yield
    except PeerError as error:
        channel.close(reason=str(error))
        raise
    except SplitLearnError as error:
        channel.close(reason=f"the run was stopped here: {type(error).__name__}")
        raise
    except KeyboardInterrupt:
        channel.close(reason="the run was interrupted here; it goes on when it is started again")
        raise
    except BaseException:
        channel.close(reason="the run failed here")
        raise
    channel.close()


def _say(sentence: str) -> None:
    from parties.console import console

    console.print(sentence, markup=False)

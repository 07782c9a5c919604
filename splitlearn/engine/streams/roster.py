"""Who streams in a round: generators that come, are late, fall silent, break, and come back.

Takes each newcomer's channel from whoever listens, gives it a stream, and keeps the round's list right.
One language is one party's; what a party does wrong ends its own stream and no other.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from splitlearn.channel.base import Channel
from splitlearn.engine.streams.rounds import Joined, Left, Terms, WatchRound
from splitlearn.engine.streams.stream import Call, Stream
from splitlearn.errors import AuditError, ChannelError, IdentityError
from splitlearn.gate import Gate
from splitlearn.session import StreamSession
from splitlearn.wire.messages import Enlist, Round

__all__ = ["Arrival", "Roster"]

# Seconds that the thread which waits for newcomers waits at a time.
_LOOK_S = 0.2
# Seconds that a stream's thread has to end, once its channel is closed.
_PARTING_S = 5.0


@dataclass(frozen=True)
class Arrival:
    """A generator at the door: its channel, its proven name, the salt and the gate of the log about it."""

    channel: Channel
    party: str
    salt: str
    open_gate: Callable[[Round, StreamSession], Gate]


class Roster:
    """The streams of one round, while it is open as a context."""

    def __init__(
        self,
        arrivals: Callable[[float], Arrival | None],
        *,
        terms: Terms,
        number: int,
        languages: dict[str, str],
        following: Callable[[str], int],
        watch: WatchRound,
    ) -> None:
        """arrivals: the next generator that dials within so many seconds. languages: by party, as known
        from rounds before; kept up to date here.
        """
        self._arrivals, self._terms, self._number = arrivals, terms, number
        self._languages, self._following, self._watch = languages, following, watch
        self._streams: dict[str, Stream] = {}
        self._silent: set[str] = set()
        self._told: set[Stream] = set()
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._fatal: AuditError | None = None
        self._door = threading.Thread(target=self._receive, name="door", daemon=True)

    def __enter__(self) -> "Roster":
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._door.join()
        for stream in self._all():
            if not stream.over:
                stream.cut(ChannelError("the round has ended"))
        for stream in self._all():
            stream.join(timeout_s=_PARTING_S)

    def streams(self) -> dict[str, Stream]:
        """Those that stream and have not fallen silent, by language. Raises AuditError: the run stops."""
        if self._fatal is not None:
            raise self._fatal
        return {
            stream.language: stream
            for stream in self._all()
            if stream.streams and stream.call.party not in self._silent
        }

    def gather(self, *, least: int, more_s: float, until_s: float) -> None:
        """Wait for `least` generators until the moment `until_s`, and `more_s` for all that are known.

        Raises ChannelError if too few came.
        """
        enough_s = min(until_s, time.monotonic() + more_s)
        known = set(self._languages)
        while True:
            here = {stream.call.party for stream in self.streams().values()}
            now_s = time.monotonic()
            if len(here) >= least and (now_s >= enough_s or (known and known <= here)):
                return
            if now_s >= until_s:
                raise ChannelError(
                    f"{len(here)} generators came to round {self._number}; {least} are needed: see that "
                    "they run (splitlearn generator run), and start again"
                )
            with self._news:
                self._news.wait(min(_LOOK_S, until_s - now_s))

    def silence(self, stream: Stream, *, waited_s: float) -> None:
        """Nothing came from it when its turn was: leave it out until something comes."""
        if stream.call.party not in self._silent and not stream.over:
            self._silent.add(stream.call.party)
            self._watch(
                Left(stream.call.party, f"nothing came for {waited_s:.0f} s; it may come back")
            )

    def heard(self) -> Iterator[Stream]:
        """Those that were silent and are not any more."""
        for stream in self._all():
            if stream.call.party in self._silent and stream.fill and not stream.over:
                self._silent.discard(stream.call.party)
                self._watch(Joined(stream.call.party, stream.language))
                yield stream

    def wait(self, timeout_s: float) -> None:
        """Until somebody comes or goes, or so long."""
        with self._news:
            self._news.wait(timeout_s)

    def everybody(self) -> list[Stream]:
        """All streams of the round, those that ended too."""
        return self._all()

    def _all(self) -> list[Stream]:
        return list(self._streams.values())

    def _receive(self) -> None:
        while not self._stop.is_set():
            arrival = self._arrivals(_LOOK_S)
            if arrival is None:
                continue
            before = self._streams.get(arrival.party)
            if before is not None and not before.over:
                before.cut(ChannelError(f"{arrival.party} came anew"))
            call = Call(
                party=arrival.party,
                salt=arrival.salt,
                open_gate=arrival.open_gate,
                following=partial(self._following, arrival.party),
                welcome=partial(self._welcome, arrival.party),
            )
            self._silent.discard(arrival.party)
            self._streams[arrival.party] = Stream(
                arrival.channel,
                call=call,
                terms=self._terms,
                number=self._number,
                told=self._hear_of,
            )

    def _welcome(self, party: str, enlist: Enlist) -> None:
        with self._news:
            holder = next(
                (other for other, said in self._languages.items() if said == enlist.language), party
            )
            if holder != party:
                raise IdentityError(
                    f"language {enlist.language} is {holder}'s in this run; {party} may not stream it"
                )
            before = self._languages.setdefault(party, enlist.language)
            if before != enlist.language:
                raise IdentityError(
                    f"{party} streamed {before} before and {enlist.language} now; one party is one language"
                )

    def _hear_of(self, stream: Stream) -> None:
        if isinstance(stream.failure, AuditError):
            self._fatal = stream.failure
        if stream.failure is not None and stream not in self._told:
            self._told.add(stream)
            self._watch(Left(stream.call.party, str(stream.failure)))
        elif stream.streams:
            self._watch(Joined(stream.call.party, stream.language))
        with self._news:
            self._news.notify_all()

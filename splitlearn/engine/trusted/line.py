"""One compute party as the trusted engine sees it: its offer, its channel, the conversation under way.

A trusted party has a line for each compute party of its chain. What is said over a line is an ordinary
conversation, with a gate, a session and settlements of its own: no party learns of another. Does no
sums and decides nothing about the pace.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import msgspec
from torch import Tensor

from splitlearn.channel.base import Channel
from splitlearn.engine.conversation.talk import Talk
from splitlearn.engine.payloads.coders import Coders
from splitlearn.engine.payloads.crossing import CrossExchange, crosses
from splitlearn.engine.payloads.exchange import Exchange
from splitlearn.engine.payloads.kept import Kept, Namer
from splitlearn.engine.payloads.noise import LabelNoise
from splitlearn.engine.payloads.weights import Inlet, shards
from splitlearn.errors import SessionError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import Session, State
from splitlearn.split.weights import GROUPS, stands_still
from splitlearn.wire.messages import (
    Accept,
    Empty,
    Finish,
    Hops,
    Norm,
    Offer,
    Resume,
    Scale,
    Shard,
    Step,
)

__all__ = ["Hop", "Line", "Peer", "lost_over"]


@dataclass(frozen=True)
class Hop:
    """What one compute party is asked to do.

    groups: its layers' weights before training, by group name, the bases of codecs as "bases", and what
    both parties draw alike as "adapters", which is never sent before it was trained;
    entrance and exit: columns of what it is sent and of what comes back.
    """

    offer: Offer
    groups: dict[str, dict[str, Tensor]]
    entrance: int
    exit: int


@dataclass(frozen=True)
class Peer:
    """How one compute party is reached.

    open_gate: a gate for a new conversation. again: a fresh channel in place of `channel`, or of the
    newest that it gave, on which the peer finds us come back as a new process; a party that is alone
    needs none.
    """

    channel: Channel
    open_gate: Callable[[Offer, Session], Gate]
    again: Callable[[], Channel] | None = None


class Line:
    """One compute party over all conversations of a run. Each method but `begin` needs one under way."""

    def __init__(
        self,
        hop: Hop,
        peer: Peer,
        *,
        packed: bool,
        noise: LabelNoise | None,
        deadline_s: float,
        overlap: bool,
        kept: Kept,
        linking: bytes,
        start: int | None = None,
    ) -> None:
        """packed, noise: as in Exchange; overlap: as in Talk. kept: for rows that codecs keep; linking:
        the secret behind the pseudonyms of samples. start: the id that a decoder's texts begin with, if any.
        """
        self.hop = hop
        self._peer, self._channel = peer, peer.channel
        self._packed, self._noise, self._start = packed, noise, start
        self._deadline_s, self._overlap = deadline_s, overlap
        # As in Talk, over all conversations.
        self.sent: Counter[Kind] = Counter()
        self.received: Counter[Kind] = Counter()
        self.errors: dict[Kind, list[float]] = {}
        self._coders = Coders.of_offer(hop.offer, hop.groups.get("bases", {}), kept=kept)
        self._linking, self._cache_bytes = linking, kept.limit_bytes
        self._talk: Talk | None = None
        self._exchange: Exchange | None = None
        # Where parties wait for one another: the others, looked at while this one is waited for.
        self.beside: Sequence[Line] = ()

    @property
    def name(self) -> str:
        """The compute party's."""
        return self._channel.peer

    @property
    def hops(self) -> Hops | None:
        """The party's neighbours in a direct chain, as its offer names them."""
        return self.hop.offer.detail.hops

    @property
    def talk(self) -> Talk:
        """The conversation under way."""
        assert self._talk is not None, "a step before the conversation began"
        return self._talk

    @property
    def tensors(self) -> Exchange:
        """Its tensors."""
        assert self._exchange is not None, "a step before the conversation began"
        return self._exchange

    @property
    def both(self) -> CrossExchange:
        """The same, with a peer that has layers of a decoder."""
        assert isinstance(self._exchange, CrossExchange), "a memory for a peer that takes none"
        return self._exchange

    @property
    def restarted(self) -> bool:
        """Whether it was this peer that came back as a new process."""
        return self._talk is not None and self._talk.restarted

    def begin(self, held: Sequence[int], *, hops: Hops | None = None) -> None:
        """Offer the job in a new conversation. held: the steps that we hold checkpoints of. hops: in a direct
        chain, the party's neighbours.
        """
        session = Session(me=Role.TRUSTED, peer=Role.COMPUTE)
        self._channel.renew()
        offer = msgspec.structs.replace(
            self.hop.offer,
            held=tuple(held),
            conversation=secrets.token_hex(16),
            detail=msgspec.structs.replace(self.hop.offer.detail, hops=hops),
        )
        self._talk = Talk(
            channel=self._channel,
            session=session,
            gate=self._peer.open_gate(offer, session),
            deadline_s=self._deadline_s,
            # What is kept of one message is what the next one is written against.
            overlap=self._overlap and not self._coders.linking,
            sent=self.sent,
            received=self.received,
            errors=self.errors,
            meanwhile=self._look_beside if self.beside else None,
        )
        self._coders.begin()
        self._exchange = self._open(self._talk)
        self._talk.say(Kind.OFFER, offer)

    def _open(self, talk: Talk) -> Exchange:
        """The exchange of a conversation, by what the peer's layers take."""
        widths = {Kind.OUTPUT: self.hop.exit, Kind.INPUT_GRADIENT: self.hop.entrance}
        if crosses(self.hop.offer):
            assert self._start is not None, "a decoder's config says what its texts begin with"
            return CrossExchange(talk, coders=self._coders, widths=widths, start=self._start)
        return Exchange(
            talk,
            coders=self._coders,
            widths=widths,
            packed=self._packed,
            noise=self._noise,
            namer=self._namer(),
        )

    def look(self) -> None:
        """Notice what has become of this party. Raises PeerRestarted, or what it did wrong or says we did.

        Weights that come home are not taken ahead.
        """
        talk = self._talk
        if talk is not None and talk.session.state is not State.FINISHING:
            talk.look()

    def _look_beside(self) -> None:
        for line in self.beside:
            line.look()

    def _namer(self) -> Namer | None:
        """Who says which samples are kept, where the activation's codec keeps any."""
        hop, coders = self.hop, self._coders
        if not coders.links(Kind.ACTIVATION):
            return None
        widths = (hop.entrance, *([hop.exit] if coders.links(Kind.OUTPUT) else []))
        return Namer(self._linking, widths=widths, limit_bytes=self._cache_bytes)

    def accepted(self) -> Accept:
        """What the peer holds and needs."""
        accept = self.talk.hear(Kind.ACCEPT).meta
        assert isinstance(accept, Accept)
        self.talk.gate.witness.peer_holds(accept.witnessed)
        return accept

    def send_weights(self, accept: Accept) -> Iterator[tuple[int, int]]:
        """Send what it needs, a shard for each turn; the shard's index and how many there are."""
        if accept.needs:
            state = {n: t for group in accept.needs for n, t in self.hop.groups[group].items()}
            cut = shards(state)
            for i, parts in enumerate(cut):
                self.talk.say(Kind.WEIGHTS, Shard(i, len(cut)), parts=parts)
                yield i, len(cut)

    def resume(self, step: int) -> None:
        """Name the step that everybody goes on from."""
        self.talk.say(Kind.RESUME, Resume(step, self.talk.gate.witness.held))

    def ready(self) -> None:
        """Wait until the peer stands at that step, and settle."""
        assert isinstance(self.talk.hear(Kind.READY).meta, Empty)
        self.talk.settle()

    def square(self) -> Fraction:
        """The squared norm of the gradient that the peer has at the end of a step."""
        norm = self.talk.hear(Kind.NORM).meta
        assert isinstance(norm, Norm)
        return sum(map(Fraction, norm.squares), Fraction())

    def scale(self, step: int, factor: float) -> None:
        """Have the peer multiply its gradients of `step`, and do it."""
        self.talk.say(Kind.SCALE, Scale(step, factor))

    def save(self, step: int, *, best: int | None = None) -> None:
        """Ask for a checkpoint after `step` steps, and to keep that of step `best`. `saved` waits for it."""
        self.talk.say(Kind.CHECKPOINT, Step(step, best))

    def saved(self) -> None:
        """Wait for the checkpoint that was asked for; codecs that remember forget."""
        self.talk.hear(Kind.SAVED)
        self._coders.forget()

    def finish(self, *, fetch: bool) -> None:
        """Begin the goodbye. `parting` is the rest of it."""
        self.talk.settle()
        self.talk.say(Kind.FINISH, Finish(fetch))

    def parting(self, into: dict[str, Tensor]) -> Iterator[None]:
        """Hear the rest, a message for each turn; trained weights, if any came, are put `into`."""
        trained = ("bottlenecks", "adapters") if self.hop.offer.detail.lora else GROUPS
        ours = [pair for g in trained for pair in self.hop.groups[g].items()]
        inlet = Inlet({name: tensor for name, tensor in ours if not stands_still(name)})
        heard = 0
        while (frame := self.talk.hear(Kind.WEIGHTS, Kind.CLOSED)).kind is Kind.WEIGHTS:
            inlet.take(self.talk.parts(frame))
            heard += 1
            yield
        if heard:
            into.update(inlet.state())

    def end(self, error: BaseException | None) -> None:
        """Close the log's account of the conversation, if there is one."""
        self._coders.begin()  # what was kept is of no use to the next conversation
        if self._talk is not None:
            self._talk.end(error)

    def anew(self) -> None:
        """Leave the conversation, so that another can begin: with a peer that restarted on the same
        channel, with one that did not on a fresh one.
        """
        if self._talk is None:
            return
        if not self.restarted:
            if self._peer.again is None:
                raise SessionError(
                    f"the run has to begin anew with {self.name}, and there is no way to reach it again"
                )
            self._channel = self._peer.again()
        self._talk = None


def lost_over(lines: Iterable[Line]) -> dict[Kind, list[float]]:
    """What codecs lost of what was sent, by kind: the sum over messages, and how many."""
    total: dict[Kind, list[float]] = {}
    for line in lines:
        for kind, (lost, count) in line.errors.items():
            before = total.setdefault(kind, [0.0, 0])
            total[kind] = [before[0] + lost, before[1] + count]
    return total

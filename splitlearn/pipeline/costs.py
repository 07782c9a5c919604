"""What one setting of a job costs: from cut, micro-batches and codecs to the simulator's figures.

Pure sums over measured speeds. A micro-batch is the mean one: all have the same number of tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from splitlearn.pipeline.chain import TRUSTED, Chain, Pipe, StageCosts
from splitlearn.pipeline.speeds import CodecSpeed, Line, PartySpeeds, Speeds

__all__ = ["Costed", "Link", "Setting", "chain_of", "cost"]


@dataclass(frozen=True)
class Link:
    """The trusted party's link to its peer."""

    up: Pipe
    down: Pipe

    @staticmethod
    def of(*, mbit: float | None, rtt_ms: float, mbit_back: float | None = None) -> "Link":
        """The same both ways unless said otherwise; no rate is no limit."""
        back = mbit if mbit_back is None else mbit_back
        delay_s = rtt_ms / 2e3
        return Link(
            Pipe(None if mbit is None else mbit * 1e6, delay_s),
            Pipe(None if back is None else back * 1e6, delay_s),
        )

    @property
    def round_trip_s(self) -> float:
        return self.up.delay_s + self.down.delay_s


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a planner may turn, and what it may not (batch, ranks, mode).

    lower, upper: columns at the cuts, 0 for the model's width. codecs: of activation, output,
    gradient and input gradient. gradients: whether any leave; returns: whether one comes back. starts:
    first layer of each further compute party of a chain; inner: codecs of what goes from one to the
    next and back, at the model's width. direct: whether it goes there straight, over a link as ours. clips:
    whether all parties' gradients are clipped by one norm. keeps: whether outputs that came once are kept, so
    that later epochs send nothing.
    """

    batch: int
    first: int
    last: int
    micro_batches: int
    in_flight: int
    order: str
    codecs: tuple[str, str, str, str]
    gradients: bool
    returns: bool
    lower: int = 0
    upper: int = 0
    staleness: int = 0
    starts: tuple[int, ...] = ()
    inner: tuple[str, str] = ("", "")
    clips: bool = False
    keeps: bool = False
    direct: bool = False

    @property
    def used(self) -> tuple[str, ...]:
        """The codecs of whatever travels."""
        outer = self.codecs if self.returns else self.codecs[: 3 if self.gradients else 2]
        return outer + self.inner[: 2 if self.gradients else 1] if self.starts else outer


@dataclass(frozen=True)
class Costed:
    """A setting's chain, and what of it can be said without simulating.

    up, down: bytes a step each way. error: the largest relative error of a codec in it. limit_s: no
    schedule is faster: the busiest party or wire, one fill, and the round trips that no step avoids.
    largest: bytes of the largest message. kept_s: of a step whose outputs are kept, all of it the trusted
    party's own work; None where none are.
    """

    chain: Chain
    up: int
    down: int
    error: float
    limit_s: float
    largest: int
    kept_s: float | None


# Frame header, metadata, container header and TLS records around a message, and what a length takes
# of an activation.
_AROUND_BYTES = 400
_LENGTH_BYTES = 2
# HTTP/2 and TLS around every 16 KiB.
_WIRE_OVERHEAD = 1.004

# Frames untaken in one direction, and messages between settlements, as the engine has them: where steps
# interleave, as many as the session allows.
_WINDOW = 32
_SETTLE_MESSAGES = 128
_STRETCH_MESSAGES = 256


def cost(setting: Setting, *, speeds: Speeds, link: Link) -> Costed:
    """The setting in figures. KeyError for a codec that `speeds` does not have."""
    chain = chain_of(setting, speeds=speeds, link=link)
    m = setting.micro_batches
    # What is relayed comes in and goes out.
    relayed = [*chain.hops, *chain.back_hops] if chain.relayed else []
    sizes = [chain.activation, chain.output, chain.gradient or 0, chain.input_gradient or 0]
    return Costed(
        chain=chain,
        up=m * (sizes[0] + sizes[2] + sum(relayed)),
        down=m * (sizes[1] + sizes[3] + sum(relayed)),
        error=max(_codec(speeds, name).error for name in setting.used),
        limit_s=limit_s(chain),
        largest=max([*sizes, *chain.hops, *chain.back_hops]),
        kept_s=_kept_s(setting, speeds) if setting.keeps else None,
    )


def chain_of(setting: Setting, *, speeds: Speeds, link: Link) -> Chain:
    """The simulator's figures of a setting."""
    examples = setting.batch / setting.micro_batches
    padded, rows = examples * speeds.padded, examples * speeds.tokens
    lower, upper = setting.lower or speeds.width, setting.upper or speeds.width
    further = len(setting.starts)

    def message(name: str, columns: int, *, lengths: bool = False) -> _Message:
        return _Message(
            _codec(speeds, name), rows=rows, columns=columns, examples=examples if lengths else 0
        )

    activation = message(setting.codecs[0], lower, lengths=True)
    output = message(setting.codecs[1], upper)
    gradient, input_gradient = message(setting.codecs[2], upper), message(setting.codecs[3], lower)
    # Lengths travel on the way out only; they are as nothing beside rows of the full width.
    inner = [message(setting.inner[0], speeds.width, lengths=True)] * further if further else []
    inner_back = [message(setting.inner[1], speeds.width)] * further if further else []
    trusted, peer = speeds.trusted, speeds.peer
    bottom_s = _bottom_s(setting, speeds) + activation.out_s(trusted)
    top_s = _top_s(setting, speeds) + output.in_s(trusted)
    if setting.gradients:
        top_s += gradient.out_s(trusted)
    bottom_backward_s = 0.0
    if setting.returns:
        bottom_backward_s = (
            setting.first * Line(*trusted.layer_backward).at(padded)
            + Line(*trusted.ends_backward).at(padded)
            + input_gradient.in_s(trusted)
        )
    stages = _stages(
        setting,
        peer,
        padded=padded,
        forward=[activation, *inner, output],
        backward=[input_gradient if setting.returns else None, *inner_back, gradient],
    )
    return Chain(
        micro_batches=setting.micro_batches,
        in_flight=setting.in_flight,
        order=setting.order,
        bottom_s=bottom_s,
        top_s=top_s,
        bottom_backward_s=bottom_backward_s,
        stages=stages,
        activation=activation.size,
        output=output.size,
        gradient=gradient.size if setting.gradients else None,
        input_gradient=input_gradient.size if setting.returns else None,
        hops=tuple(one.size for one in inner),
        back_hops=tuple(one.size for one in inner_back) if setting.gradients else (),
        up=link.up,
        down=link.down,
        # Nobody measures a link between others: it is taken to be the slower way of ours.
        between=min(link.up, link.down, key=lambda pipe: pipe.bits_per_s or math.inf),
        relayed=further > 0 and not setting.direct,
        relay_s=inner[0].in_s(trusted) + inner[0].out_s(trusted) if inner else 0.0,
        relay_backward_s=(
            inner_back[0].in_s(trusted) + inner_back[0].out_s(trusted) if inner_back else 0.0
        ),
        update_s=_update_s(setting, speeds),
        window=_WINDOW,
        settle_messages=_STRETCH_MESSAGES if setting.staleness else _SETTLE_MESSAGES,
        staleness=setting.staleness,
        clips=setting.clips and setting.gradients,
    )


def _bottom_s(setting: Setting, speeds: Speeds) -> float:
    """Of one micro-batch, without its message."""
    padded = setting.batch / setting.micro_batches * speeds.padded
    return setting.first * Line(*speeds.trusted.layer).at(padded)


def _top_s(setting: Setting, speeds: Speeds) -> float:
    """Forward, loss and backward of one micro-batch, without messages."""
    padded, trusted = setting.batch / setting.micro_batches * speeds.padded, speeds.trusted
    layer_s = Line(*trusted.layer).at(padded) + Line(*trusted.layer_backward).at(padded)
    return (speeds.layers - setting.last) * layer_s + Line(*trusted.ends).at(padded)


def _update_s(setting: Setting, speeds: Speeds) -> float:
    """The trusted party's step of its optimiser."""
    trusted, above = speeds.trusted, speeds.layers - setting.last
    if not setting.returns:
        return above * trusted.layer_update_s
    return (above + setting.first) * trusted.layer_update_s + trusted.ends_update_s


def _kept_s(setting: Setting, speeds: Speeds) -> float:
    """A step for which nothing is sent, and the bottom does not run."""
    return setting.micro_batches * _top_s(setting, speeds) + _update_s(setting, speeds)


def _stages(
    setting: Setting,
    peer: PartySpeeds,
    *,
    padded: float,
    forward: Sequence["_Message"],
    backward: Sequence["_Message | None"],
) -> tuple[StageCosts, ...]:
    """What each compute party does. forward, backward: the messages before each stage, and after the last."""
    found = []
    for place, (first, last) in enumerate(pairwise((setting.first, *setting.starts, setting.last))):
        layers, gone = last - first, backward[place]
        came = backward[place + 1]
        forward_s = layers * Line(*peer.layer).at(padded)
        forward_s += forward[place].in_s(peer) + forward[place + 1].out_s(peer)
        backward_s = layers * Line(*peer.layer_backward).at(padded)
        backward_s += 0.0 if came is None else came.in_s(peer)
        backward_s += 0.0 if gone is None else gone.out_s(peer)
        if setting.gradients:
            found.append(StageCosts(forward_s, backward_s, layers * peer.layer_update_s))
        else:
            found.append(StageCosts(forward_s))
    return tuple(found)


def limit_s(chain: Chain) -> float:
    """No step of this chain is shorter, whatever its schedule.

    Where steps interleave, their round trips do too; of so many at once none is shorter than alone.
    """
    alone_s = _drained_limit_s(chain)
    if not chain.staleness:
        return alone_s
    busy_s = max(_busy_s(chain).values())
    return max(busy_s, alone_s / (chain.staleness + 1))


class _Leg(NamedTuple):
    """A piece of a micro-batch's way. at: the party or wire that is busy; None where it only travels."""

    at: object
    seconds: float


def _drained_limit_s(chain: Chain) -> float:
    """That of steps one after the other.

    Each party and wire is busy so long, and cannot begin before the first micro-batch has come to it
    nor end later than the last one takes on from there. What still goes on after the trusted party's
    last work may run on beside the next step, and is busy time only.
    """
    way, m = _way(chain), chain.micro_batches
    last = max(i for i, leg in enumerate(way) if leg.at == TRUSTED)
    within, busy_s = way[: last + 1], _busy_s(chain)
    bounds = [sum(leg.seconds for leg in within) + chain.update_s, *busy_s.values()]
    for at in {leg.at for leg in within} - {None, TRUSTED}:
        if any(leg.at == at for leg in way[last:]):
            continue
        places = [i for i, leg in enumerate(within) if leg.at == at]
        before_s = sum(leg.seconds for leg in within[: places[0]])
        after_s = sum(leg.seconds for leg in within[places[-1] + 1 :])
        bounds.append(before_s + m * _spent_s(way, at) + after_s + chain.update_s)
    return max(bounds)


def _busy_s(chain: Chain) -> dict[object, float]:
    """Seconds a step of each party and wire."""
    way = _way(chain)
    busy_s = {leg.at: chain.micro_batches * _spent_s(way, leg.at) for leg in way}
    busy_s.pop(None, None)
    busy_s[TRUSTED] += chain.update_s
    return busy_s


def _spent_s(way: Sequence[_Leg], at: object) -> float:
    return sum(leg.seconds for leg in way if leg.at == at)


def _way(chain: Chain) -> list[_Leg]:
    """One micro-batch's way through all parties and wires, there and back, where nobody is in its way."""

    def over(name: str, pipe: Pipe, size: int) -> list[_Leg]:
        return [_Leg(name, pipe.sending_s(size)), _Leg(None, pipe.delay_s)]

    def hop(size: int, *, place: int, relay_s: float) -> list[_Leg]:
        if not chain.relayed:
            return over(f"between {place}", chain.between, size)
        relay = _Leg(TRUSTED, relay_s)
        return [*over("down", chain.down, size), relay, *over("up", chain.up, size)]

    way = [_Leg(TRUSTED, chain.bottom_s), *over("up", chain.up, chain.activation)]
    for place, stage in enumerate(chain.stages):
        if place:
            way += hop(chain.hops[place - 1], place=place, relay_s=chain.relay_s)
        way.append(_Leg(place, stage.forward_s))
    way += [*over("down", chain.down, chain.output), _Leg(TRUSTED, chain.top_s)]
    if chain.gradient is None:
        return way
    way += over("up", chain.up, chain.gradient)
    for place, stage in reversed(list(enumerate(chain.stages))):
        way.append(_Leg(place, stage.backward_s))
        if place:
            way += hop(chain.back_hops[place - 1], place=-place, relay_s=chain.relay_backward_s)
    if chain.input_gradient is None:
        # A norm comes in the input gradient's place: as good as no bytes, but no sooner.
        norm = [_Leg(None, chain.down.delay_s), _Leg(TRUSTED, 0.0)]
        return way + norm if chain.clips else way
    way += over("down", chain.down, chain.input_gradient)
    return [*way, _Leg(TRUSTED, chain.bottom_backward_s)]


@dataclass(frozen=True)
class _Message:
    codec: CodecSpeed
    rows: float
    columns: int
    examples: float

    @property
    def float_bytes(self) -> float:
        return 4 * self.rows * self.columns

    @property
    def size(self) -> int:
        content = self.float_bytes / self.codec.shrinks + _LENGTH_BYTES * self.examples
        return round(_WIRE_OVERHEAD * (content + _AROUND_BYTES))

    def out_s(self, party: PartySpeeds) -> float:
        coding_s = self.float_bytes / (1e6 * self.codec.encode_mb_s)
        return Line(*party.message).at(self.float_bytes) + coding_s + self._carried_s(party)

    def in_s(self, party: PartySpeeds) -> float:
        coding_s = self.float_bytes / (1e6 * self.codec.decode_mb_s)
        # No rows are judged on the way in that were judged on the way out; the log is the same.
        return Line(*party.message).fixed_s + coding_s + self._carried_s(party)

    def _carried_s(self, party: PartySpeeds) -> float:
        # On a core of its own the channel's thread would cost nothing; a party may not have one.
        return Line(*party.carry).at(self.size)


def _codec(speeds: Speeds, name: str) -> CodecSpeed:
    found = speeds.codec(name)
    if found is None:
        raise KeyError(name)
    return found

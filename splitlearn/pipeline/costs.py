"""What one setting of a job costs: from cut, micro-batches and codecs to the simulator's figures.

Pure sums over measured speeds. A micro-batch is the mean one: all have the same number of tokens.
"""

from dataclasses import dataclass, replace

from splitlearn.pipeline.chain import Chain, Pipe, StageCosts
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
    gradient and input gradient. gradients: whether any leave; returns: whether one comes back.
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


@dataclass(frozen=True)
class Costed:
    """A setting's chain, and what of it can be said without simulating.

    up, down: bytes a step each way. error: the largest relative error of a codec in it. limit_s: no
    schedule is faster: the busiest party or wire, one fill, and the round trips that no step avoids.
    largest: bytes of the largest message.
    """

    chain: Chain
    up: int
    down: int
    error: float
    limit_s: float
    largest: int


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
    up = m * (chain.activation + (chain.gradient or 0))
    down = m * (chain.output + (chain.input_gradient or 0))
    used = setting.codecs if setting.returns else setting.codecs[: 3 if setting.gradients else 2]
    return Costed(
        chain=chain,
        up=up,
        down=down,
        error=max(_codec(speeds, name).error for name in used),
        limit_s=limit_s(chain),
        largest=max(chain.activation, chain.output, chain.gradient or 0, chain.input_gradient or 0),
    )


def chain_of(setting: Setting, *, speeds: Speeds, link: Link) -> Chain:
    """The simulator's figures of a setting."""
    examples = setting.batch / setting.micro_batches
    padded, rows = examples * speeds.padded, examples * speeds.tokens
    lower, upper = setting.lower or speeds.width, setting.upper or speeds.width
    messages = [
        _Message(
            _codec(speeds, name), rows=rows, columns=columns, examples=examples if i == 0 else 0
        )
        for i, (name, columns) in enumerate(
            zip(setting.codecs, (lower, upper, upper, lower), strict=True)
        )
    ]
    activation, output, gradient, input_gradient = messages
    trusted, peer = speeds.trusted, speeds.peer
    above, inside = speeds.layers - setting.last, setting.last - setting.first
    bottom_s = setting.first * Line(*trusted.layer).at(padded) + activation.out_s(trusted)
    top_s = (
        above * (Line(*trusted.layer).at(padded) + Line(*trusted.layer_backward).at(padded))
        + Line(*trusted.ends).at(padded)
        + output.in_s(trusted)
    )
    stage = StageCosts(
        inside * Line(*peer.layer).at(padded) + activation.in_s(peer) + output.out_s(peer)
    )
    trains, ends_s = above, 0.0
    if setting.gradients:
        top_s += gradient.out_s(trusted)
        back_s = inside * Line(*peer.layer_backward).at(padded) + gradient.in_s(peer)
        stage = replace(
            stage, backward_s=back_s + (input_gradient.out_s(peer) if setting.returns else 0.0)
        )
    bottom_backward_s = 0.0
    if setting.returns:
        trains, ends_s = trains + setting.first, trusted.ends_update_s
        bottom_backward_s = (
            setting.first * Line(*trusted.layer_backward).at(padded)
            + Line(*trusted.ends_backward).at(padded)
            + input_gradient.in_s(trusted)
        )
    return Chain(
        micro_batches=setting.micro_batches,
        in_flight=setting.in_flight,
        order=setting.order,
        bottom_s=bottom_s,
        top_s=top_s,
        bottom_backward_s=bottom_backward_s,
        stages=(stage,),
        activation=activation.size,
        output=output.size,
        gradient=gradient.size if setting.gradients else None,
        input_gradient=input_gradient.size if setting.returns else None,
        up=link.up,
        down=link.down,
        update_s=trains * trusted.layer_update_s + ends_s,
        stage_update_s=inside * peer.layer_update_s if setting.gradients else 0.0,
        window=_WINDOW,
        settle_messages=_STRETCH_MESSAGES if setting.staleness else _SETTLE_MESSAGES,
        staleness=setting.staleness,
    )


def limit_s(chain: Chain) -> float:
    """No step of this chain is shorter, whatever its schedule.

    Where steps interleave, their round trips do too; of so many at once none is shorter than alone.
    """
    alone_s = _drained_limit_s(chain)
    if not chain.staleness:
        return alone_s
    m, stage = chain.micro_batches, chain.stages[0]
    up, down = chain.up.sending_s, chain.down.sending_s
    return max(
        m * (chain.bottom_s + chain.top_s + chain.bottom_backward_s) + chain.update_s,
        m * (stage.forward_s + stage.backward_s),
        m * (up(chain.activation) + up(chain.gradient or 0)),
        m * (down(chain.output) + down(chain.input_gradient or 0)),
        alone_s / (chain.staleness + 1),
    )


def _drained_limit_s(chain: Chain) -> float:
    """That of steps one after the other.

    The busiest of both parties and both wires, and beside it what a step cannot hide: the way of one
    micro-batch up to the busiest of them and on from there, delays included.
    """
    m, stage = chain.micro_batches, chain.stages[0]
    trusted_s = m * (chain.bottom_s + chain.top_s + chain.bottom_backward_s) + chain.update_s
    compute_s = m * (stage.forward_s + stage.backward_s)
    up_s, down_s = chain.up.sending_s, chain.down.sending_s
    forward_s = up_s(chain.activation) + chain.up.delay_s + stage.forward_s
    forward_s += down_s(chain.output) + chain.down.delay_s
    if chain.gradient is None:
        return max(
            trusted_s,
            m * up_s(chain.activation) + _rest(forward_s, up_s(chain.activation), chain),
            m * down_s(chain.output) + _rest(forward_s, down_s(chain.output), chain),
            m * stage.forward_s + _rest(forward_s, stage.forward_s, chain),
        )
    there_s = up_s(chain.gradient) + chain.up.delay_s + stage.backward_s
    way_s = chain.bottom_s + forward_s + chain.top_s + there_s
    up_all_s = m * (up_s(chain.activation) + up_s(chain.gradient))
    if chain.input_gradient is None:
        # The next step's bottoms may begin while gradients are still under way.
        down_all_s = m * down_s(chain.output)
        return max(trusted_s, compute_s, up_all_s, down_all_s, way_s - there_s + chain.update_s)
    back_s = down_s(chain.input_gradient) + chain.down.delay_s + chain.bottom_backward_s
    back_s += chain.update_s
    arrive_s = chain.bottom_s + up_s(chain.activation) + chain.up.delay_s
    down_all_s = m * (down_s(chain.output) + down_s(chain.input_gradient))
    return max(
        trusted_s,
        way_s + back_s,
        arrive_s + compute_s + back_s,
        chain.bottom_s + up_all_s + chain.up.delay_s + stage.backward_s + back_s,
        arrive_s + stage.forward_s + down_all_s - down_s(chain.input_gradient) + back_s,
    )


def _rest(way_s: float, part_s: float, chain: Chain) -> float:
    return chain.bottom_s + way_s - part_s + chain.top_s + chain.update_s


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

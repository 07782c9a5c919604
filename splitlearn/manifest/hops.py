"""What a job says of a chain of compute parties, and what of it makes no sense.

The first compute party is [peer]; each further one is a table [[chain]], in the order of their layers.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from splitlearn.manifest.chains import links, needs_basis, remembers
from splitlearn.manifest.coding import CodecTable
from splitlearn.manifest.fields import Fault, peer_faults

if TYPE_CHECKING:
    from splitlearn.manifest.job import Job

__all__ = ["INNER", "MAX_PARTIES", "chain_faults", "codecs_at", "returns_at"]

# Compute parties in a chain. Each further one costs four transfers a micro-batch, and has to be there.
MAX_PARTIES = 16

# Keys of [codec] that only a chain has a use for.
INNER = frozenset({"inner", "inner_gradient"})


def codecs_at(job: "Job", *, party: int, codec: CodecTable | None = None) -> dict[str, str]:
    """The codec of each kind of tensor between the trusted party and compute party number `party`.

    codec: of a later stage; else those that the run begins with.
    """
    codec, last = codec or job.codec, len(job.chain)
    return {
        "activation": codec.inner if party else codec.activation,
        "output": codec.inner if party < last else codec.output,
        "gradient": codec.inner_gradient if party < last else codec.gradient,
        "input_gradient": codec.inner_gradient if party else codec.input_gradient,
    }


def returns_at(job: "Job", *, party: int) -> bool:
    """Whether that party sends input gradients: to the bottom if it trains, and for the party before."""
    return job.cut.sends_gradients and (party > 0 or job.cut.train_bottom)


def chain_faults(job: "Job") -> Iterator[Fault]:
    """Every impossible combination in a job's chain."""
    for table in job.chain:
        yield from peer_faults(table, table="chain")
    yield from _order_faults(job)
    yield from _address_faults(job)
    yield from _direct_faults(job)
    for kind in ("activation", "output", *sorted(INNER)):
        name = getattr(job.codec, kind)
        if job.chain and links(name):
            yield Fault(
                f"codec.{kind}",
                f"is {name}, and rows are kept by sample with one compute party only; take a codec "
                "without delta-",
            )
    for key in sorted(INNER):
        name = getattr(job.codec, key)
        if job.chain and needs_basis(name):
            yield Fault(
                f"codec.{key}",
                f"is {name}, and what goes between compute parties has no basis; take a codec without "
                "pca-",
            )
        if not job.chain and key in job.codec.model_fields_set:
            yield Fault(f"codec.{key}", "has a use with [[chain]] only; leave it out")
    if job.chain and job.schedule.staleness:
        yield Fault(
            "schedule.staleness",
            f"is {job.schedule.staleness}, and steps do not interleave over a [[chain]]; leave it out",
        )


def _direct_faults(job: "Job") -> Iterator[Fault]:
    """What a chain whose parties send to one another cannot do yet, or never will."""
    if not job.direct:
        return
    for table in job.chain:
        if not table.direct:
            yield Fault(
                "chain.direct",
                f"is true for others and not for {table.party}; take it for all of them, or for none",
            )
    if job.optimiser.clip_norm is not None and job.cut.sends_gradients:
        yield Fault(
            "optimiser.clip_norm",
            "needs a step's end that all parties see at once, and with chain.direct none does; leave one out",
        )
    if job.cut.stack != "encoder":
        yield Fault(
            "cut.stack",
            f"is {job.cut.stack}, whose layers need the encoder's output, too, and with chain.direct nobody "
            "hands it on; leave one out",
        )
    if job.canary.file is not None:
        yield Fault(
            "canary.file",
            "keeps frames that we send, and with chain.direct the inner ones are others'; leave one out",
        )
    if job.codec.stage:
        yield Fault(
            "codec.stage",
            "is not to be had with chain.direct, whose hops keep theirs; leave one out",
        )
    for key in ("activation", "output", "gradient", "input_gradient", *sorted(INNER)):
        name = getattr(job.codec, key)
        if remembers(name):
            yield Fault(
                f"codec.{key}",
                f"is {name}, which remembers messages, and with chain.direct no two parties forget at the "
                "same moment; take another codec",
            )


def _order_faults(job: "Job") -> Iterator[Fault]:
    before, parties = job.cut.bottom, {job.peer.party}
    for table in job.chain:
        if table.party in parties:
            yield Fault(
                "chain.party",
                f"is {table.party}, which hosts layers already; it takes another compute party",
            )
        if table.first <= before:
            yield Fault(
                "chain.first",
                f"is {table.first} for {table.party}; it takes a layer above {before}, where the party "
                "before it begins",
            )
        before, parties = table.first, parties | {table.party}
    if job.chain and 0 < job.cut.top <= before:
        yield Fault(
            "chain.first",
            f"is {before} for {job.chain[-1].party}; it takes a layer below cut.top, {job.cut.top}",
        )


def _address_faults(job: "Job") -> Iterator[Fault]:
    addresses = [peer.dial or peer.listen for peer in job.peers]
    for number, (table, address) in enumerate(zip(job.chain, addresses[1:], strict=True), 1):
        # Port 0 is another port each time.
        if address is not None and address.port and address in addresses[:number]:
            key = "dial" if table.dial else "listen"
            yield Fault(
                f"chain.{key}", f"is {address}, as another party's; it takes an address of its own"
            )

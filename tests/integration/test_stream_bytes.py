"""What a token costs on the wire, everything included: TLS, gRPC, frames, receipts, control."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitlearn.channel import Listener, connect
from splitlearn.engine.streams.generator import GeneratorEngine
from splitlearn.engine.streams.roster import Arrival
from splitlearn.errors import ChannelError
from splitlearn.roles import Role
from splitlearn.wire.ids import IdBatch
from tests.federation import make_identity
from tests.link import LinkProxy
from tests.streaming import DIGEST, Digester, Hall, Numbers, terms

# The defaults of pretrain.toml.
EXAMPLES, WIDTH = 32, 128
# A short round: a handshake is some 10 KB, whatever comes after it.
BATCHES = 240


class Words(Numbers):
    """Batches of any ids of a vocabulary, each example as long as it may be."""

    vocabulary = 0

    def batch(self, index: int) -> IdBatch:
        rng = np.random.default_rng(index)
        count = EXAMPLES * WIDTH
        ids = rng.integers(0, self.vocabulary, count).astype(np.int32)
        return IdBatch(ids, rng.random(count) < 0.13, (WIDTH,) * EXAMPLES)


@contextmanager
def linked(tmp_path: Path) -> Iterator[tuple[Hall, LinkProxy]]:
    """A hall whose generators come over TLS and a link that counts."""
    hub = make_identity(tmp_path, "hub", Role.DISCRIMINATOR)
    hall = Hall(tmp_path / "hall")
    listener = Listener(
        "127.0.0.1:0", identity=hub, expect_roles=frozenset({Role.GENERATOR}), run="tongues"
    )

    def arrivals(timeout_s: float) -> Arrival | None:
        try:
            channel = listener.accept(timeout_s=timeout_s)
        except ChannelError:
            return None
        assert channel.authorised is not None
        name = channel.authorised.name
        return Arrival(channel, name.party, "b" * 64, hall.open_gate(me=hub.name, peer=name))

    hall.arrivals = arrivals  # type: ignore[method-assign]
    with LinkProxy(("127.0.0.1", listener.port)) as link:
        yield hall, link
    listener.close()
    hall.close()


@pytest.mark.parametrize("vocabulary", [30_522, 120_000, 250_037])
def test_a_token_costs_two_and_a_half_bytes_at_most(tmp_path: Path, vocabulary: int) -> None:
    ana = make_identity(tmp_path, "ana", Role.GENERATOR)
    source = Words(1)
    source.vocabulary = vocabulary
    with linked(tmp_path) as (hall, link):
        hub = make_identity(tmp_path, "hub", Role.DISCRIMINATOR)
        channel = connect(
            link.address,
            identity=ana,
            peer=hub.name,
            run="tongues",
            incarnation="1" * 32,
            deadline_s=20.0,
        )
        generator = GeneratorEngine(
            channel,
            language="en",
            vocabulary_digest=DIGEST,
            batches=lambda _: source,
            open_gate=hall.open_gate(me=ana.name, peer=hub.name),
            save=lambda _: None,
            deadline_s=30.0,
        )
        thread = threading.Thread(target=generator.serve)
        thread.start()
        wanted = replace(
            terms(least=1, steps=BATCHES, held_out=1),
            vocabulary=vocabulary,
            examples=EXAMPLES,
            width=WIDTH,
            silence_s=20.0,
        )
        learner = Digester()
        hall.discriminator(learner, wanted=wanted).round()
        thread.join(20)
        channel.close()
        moved = link.up.carried + link.down.carried
    assert learner.steps == BATCHES
    per_token = moved / ((BATCHES + 1) * EXAMPLES * WIDTH)
    bits = (vocabulary - 1).bit_length() + 1
    assert bits / 8 < per_token <= 2.5

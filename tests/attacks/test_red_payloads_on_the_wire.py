"""The red payloads again, with a relay on the real channel that counts what crosses it.

Each attempt is made where an engine makes it: what the gate gives, the channel sends. After it an honest
message goes over the same channel, so that whatever went out before it would have arrived by then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from splitlearn.channel import Channel, Listener, connect
from splitlearn.codecs import build
from splitlearn.errors import IdentityError, RefusedError, SplitLearnError
from splitlearn.policy import Policy, load
from splitlearn.roles import Kind, Role
from tests.attacks.test_red_payloads import ATTACKS, Attack, honest
from tests.door import POLICIES, Door, offer
from tests.federation import make_identity
from tests.link import LinkProxy

WAIT_S = 20.0
# Acknowledgements, keepalives and the records of TLS around a message. An attempt is 15,000 or more.
BESIDE = 2_000


@dataclass
class Wire:
    """Both ends of a channel, and the relay between them."""

    ours: Channel
    theirs: Channel
    relay: LinkProxy


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    folder = tmp_path_factory.mktemp("wire")
    clinic = make_identity(folder, "clinic", Role.TRUSTED)
    farm = make_identity(folder, "farm", Role.COMPUTE)
    listener = Listener(
        "127.0.0.1:0", identity=farm, expect_roles=frozenset({Role.TRUSTED}), peer=clinic.name
    )
    with LinkProxy(("127.0.0.1", listener.port)) as relay:
        ours = connect(
            relay.address, identity=clinic, peer=farm.name, run="news", deadline_s=WAIT_S
        )
        yield Wire(ours, listener.accept(timeout_s=WAIT_S), relay)
        ours.close()
        listener.close()


def crosses(wire: Wire, door: Door, kind: Kind, meta: object, **more: object) -> int:
    """Bytes of a frame that was let out, sent, and arrived as the next one."""
    released = door.gate.release(kind, meta=meta, **more)  # type: ignore[arg-type]
    wire.ours.send(released, deadline_s=WAIT_S)
    assert wire.theirs.receive(timeout_s=WAIT_S).raw == released.raw
    return len(released.raw)


def an_honest_batch_crosses(wire: Wire, folder: Path) -> int:
    batch = honest()
    more = {"tensor": batch.x_ND, "codec": build("identity"), "private": batch.private}
    return crosses(wire, Door(folder), Kind.ACTIVATION, batch.meta, **more)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_of_a_red_payload_crosses_the_relay(
    tmp_path: Path, wire: Wire, attack: Attack
) -> None:
    door, attempt = Door(tmp_path / "red"), attack(honest())
    before = wire.relay.up.carried
    with pytest.raises(SplitLearnError):
        crosses(wire, door, attempt.kind, attempt.meta, **attempt.more)
    size = an_honest_batch_crosses(wire, tmp_path / "honest")
    assert size > 15_000
    assert size < wire.relay.up.carried - before < size + BESIDE


def test_the_relay_counts_what_an_attempt_would_be(tmp_path: Path, wire: Wire) -> None:
    before = wire.relay.up.carried
    sizes = [an_honest_batch_crosses(wire, tmp_path / str(i)) for i in range(2)]
    assert wire.relay.up.carried - before > sum(sizes)


def test_a_party_of_a_role_that_the_policy_does_not_list_is_sent_nothing(
    tmp_path: Path, wire: Wire
) -> None:
    demo = load(POLICIES / "demo.toml")
    others = tuple(msgspec.structs.replace(rule, peer=Role.GENERATOR) for rule in demo.rules)
    door = Door(tmp_path / "red", policy=Policy(name="others", rules=others), opened=False)
    before = wire.relay.up.carried
    with pytest.raises(RefusedError) as caught:
        crosses(wire, door, Kind.OFFER, offer())
    assert caught.value.rule == "no-rule"
    size = an_honest_batch_crosses(wire, tmp_path / "honest")
    assert wire.relay.up.carried - before < size + BESIDE


def test_a_party_that_the_job_does_not_name_is_sent_no_message(tmp_path: Path) -> None:
    clinic = make_identity(tmp_path, "clinic", Role.TRUSTED)
    farm = make_identity(tmp_path, "farm", Role.COMPUTE)
    other = make_identity(tmp_path, "other", Role.COMPUTE)
    listener = Listener("127.0.0.1:0", identity=other, expect_roles=frozenset({Role.TRUSTED}))
    try:
        with (
            LinkProxy(("127.0.0.1", listener.port)) as relay,
            pytest.raises(IdentityError, match="farm"),
        ):
            connect(relay.address, identity=clinic, peer=farm.name, run="news", deadline_s=WAIT_S)
        assert relay.connections > 0
    finally:
        listener.close()

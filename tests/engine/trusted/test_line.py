"""A compute party as the trusted engine sees it: its conversations, one after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from splitlearn.channel import PeerRestarted
from splitlearn.engine.conversation.talk import SETTLE_MESSAGES, SETTLE_S
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.trusted.line import Line, Peer
from splitlearn.errors import SessionError
from splitlearn.roles import Kind
from splitlearn.session import MAX_UNSETTLED, State
from splitlearn.split.cut import Cut
from tests.chains import Host, chain_run
from tests.tiny import tiny_model


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host.start(tmp_path, "farm", policy="demo.toml")
    yield host
    host.ours.close(reason="the test is over")
    host.thread.join(20)


def line_to(host: Host, *, alone: bool = False) -> Line:
    run = chain_run(tiny_model("bert"), cut=Cut(1, 3), starts=(2,), total=2)
    return Line(
        run.hops[1],
        Peer(host.ours, host.clinic.gate, None if alone else host.again),
        packed=True,
        noise=None,
        deadline_s=20.0,
        overlap=True,
        kept=Kept(host.clinic.folder),
        linking=b"",
    )


def agree(line: Line) -> int:
    """Open a conversation; how many shards were sent."""
    line.begin((0,))
    shards = list(line.send_weights(line.accepted()))
    line.resume(0)
    line.ready()
    return len(shards)


def test_a_conversation_goes_from_the_offer_to_the_goodbye(host: Host) -> None:
    line = line_to(host)
    assert line.name == "farm"
    assert agree(line) == 1
    assert line.talk.session.state is State.OPEN
    line.save(0)
    line.saved()
    line.finish(fetch=True)
    trunk: dict[str, object] = {}
    assert len(list(line.parting(trunk))) == 1  # type: ignore[arg-type]
    assert trunk.keys() == line.hop.groups["layers"].keys()
    line.end(None)
    host.close()


def test_what_a_party_has_already_is_not_sent_again(host: Host) -> None:
    line = line_to(host)
    assert agree(line) == 1
    line.anew()
    assert agree(line) == 0


def test_a_party_that_did_not_restart_is_begun_anew_on_a_fresh_channel(host: Host) -> None:
    line, before = line_to(host), host.ours
    agree(line)
    first = line.talk
    line.anew()
    assert host.ours is not before
    agree(line)
    assert line.talk is not first
    assert line.talk.channel is host.ours


def test_a_party_that_did_restart_is_begun_anew_where_it_came_back(host: Host) -> None:
    line, before = line_to(host), host.ours
    agree(line)
    host.killed()
    with pytest.raises(PeerRestarted):
        line.talk.settle()
    assert line.restarted
    line.anew()
    assert host.ours is before
    agree(line)
    assert not line.restarted


def test_a_line_with_nothing_under_way_is_left_alone(host: Host) -> None:
    line, before = line_to(host), host.ours
    line.anew()
    line.end(None)
    assert host.ours is before


def test_a_party_that_cannot_be_reached_again_is_told(host: Host) -> None:
    line = line_to(host, alone=True)
    agree(line)
    with pytest.raises(SessionError, match="begin anew with farm"):
        line.anew()


def test_a_settlement_is_due_after_so_many_messages_or_seconds(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = line_to(host)
    agree(line)
    swapped = line.talk.sent[Kind.SETTLE]
    line.talk.settle_if_due()
    assert line.talk.sent[Kind.SETTLE] == swapped
    line.talk.session.unsettled = SETTLE_MESSAGES
    line.talk.settle_if_due()
    assert line.talk.sent[Kind.SETTLE] > swapped
    assert line.talk.session.unsettled == 0
    swapped = line.talk.sent[Kind.SETTLE]
    monkeypatch.setattr("splitlearn.engine.conversation.talk.SETTLE_S", 0.0)
    line.talk.settle_if_due()
    assert line.talk.sent[Kind.SETTLE] > swapped
    assert SETTLE_MESSAGES < MAX_UNSETTLED
    assert SETTLE_S > 0

"""A conversation's first word, and its end; each engine's own is held to in the engine's test."""

from pathlib import Path

import pytest

from splitlearn.audit.records import RunClose
from splitlearn.channel import pair
from splitlearn.channel.base import Released
from splitlearn.engine.conversation.answering import conversation
from splitlearn.errors import SessionError, WireError
from splitlearn.gate import Gate
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.split.cut import Cut
from splitlearn.wire import frames
from splitlearn.wire.messages import Meta, Offer, Resume
from tests.door import records
from tests.rig import compute_party, trusted_run
from tests.tiny import tiny_model


def begun(folder: Path, kind: Kind, meta: Meta, *, then: Exception | None = None) -> list[Gate]:
    """Hear a first message, then go wrong; the gates that were opened for it."""
    party, (ours, theirs) = compute_party(folder), pair()
    raw = frames.encode(kind, seq=1, meta=meta)
    ours.send(Released(kind=kind, seq=1, raw=raw), deadline_s=5)
    opened: list[Gate] = []

    def open_gate(offer: Offer, session: Session) -> Gate:
        opened.append(party.gate(offer, session))
        return opened[-1]

    session = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
    try:
        with conversation(
            theirs,
            session,
            begins=Kind.OFFER,
            terms_of=Offer,
            open_gate=open_gate,
            deadline_s=5,
        ) as (talk, terms):
            assert terms == meta
            assert talk.received[Kind.OFFER] == len(raw)
            if then is not None:
                raise then
    finally:
        party.log.close()
    return opened


def outcome(folder: Path) -> str:
    """What the log says of how the conversation ended."""
    (end,) = (r for r in records(folder / "gpuhost" / "audit") if isinstance(r, RunClose))
    return end.outcome


def offer() -> Offer:
    return trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=1).offer


def test_terms_open_the_gate_and_are_on_the_record(tmp_path: Path) -> None:
    assert len(begun(tmp_path, Kind.OFFER, offer())) == 1
    assert outcome(tmp_path) == "done"


def test_another_first_word_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="began with resume; expected offer"):
        begun(tmp_path, Kind.RESUME, Resume(0, 0))


def test_what_ends_it_is_raised_after_the_account_is_closed(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="nonsense"):
        begun(tmp_path, Kind.OFFER, offer(), then=WireError("nonsense"))
    assert outcome(tmp_path) == "failed"

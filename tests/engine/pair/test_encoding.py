"""The encoder party against a decoder party that breaks the rules, or names what is not there."""

from pathlib import Path

import pytest

from splitlearn.engine.pair.encoding import EncoderEngine
from splitlearn.errors import IdentityError, RefusedError, SessionError, SplitLearnError, WireError
from splitlearn.policy import load
from splitlearn.roles import Role
from splitlearn.wire.messages import Pairing
from tests.pairs import POLICIES, Meeting, terms


def failing(folder: Path, wanted: Pairing, *, without: str = "") -> SplitLearnError:
    """What ends an encoder party's serving. without: a rule that is taken out of its policy."""
    meeting = Meeting(folder)
    policy = load(POLICIES / "encoder.toml")
    rules = tuple(rule for rule in policy.rules if rule.id != without)
    import msgspec

    meeting.policies[Role.ENCODER] = msgspec.structs.replace(policy, rules=rules)
    meeting.serve()
    engine = meeting.decode(wanted)
    with pytest.raises(SplitLearnError) as caught:
        engine.train()
    engine.end(caught.value)
    meeting.ends[1].close()
    meeting.close()
    assert len(meeting.failures) == 1
    found = meeting.failures[0]
    assert isinstance(found, SplitLearnError)
    return found


def test_another_width_is_told_before_anything_is_sent(tmp_path: Path) -> None:
    found = failing(tmp_path, terms(width=64))
    assert isinstance(found, IdentityError)
    assert "wants rows of 64 numbers" in str(found)
    assert "our encoder has 32" in str(found)


def test_a_text_longer_than_agreed_is_refused_where_it_would_be_sent(tmp_path: Path) -> None:
    found = failing(tmp_path, terms(length=5))
    assert isinstance(found, SessionError)
    assert "of at most 5" in str(found)


@pytest.mark.parametrize("rule", ["rows", "samples", "gradient"])
def test_what_the_policy_does_not_name_stops_the_run(tmp_path: Path, rule: str) -> None:
    found = failing(tmp_path, terms(), without=rule)
    assert isinstance(found, RefusedError)
    assert "no rule" in str(found)


def test_the_first_word_has_to_be_the_terms(tmp_path: Path) -> None:
    from splitlearn.channel.base import Released
    from splitlearn.roles import Kind
    from splitlearn.wire import frames
    from splitlearn.wire.messages import Resume

    meeting = Meeting(tmp_path)
    raw = frames.encode(Kind.RESUME, seq=1, meta=Resume(0, 0))
    meeting.ends[1].send(Released(kind=Kind.RESUME, seq=1, raw=raw), deadline_s=5)
    engine = EncoderEngine(
        meeting.ends[0],
        open_gate=meeting.open_gate(Role.ENCODER),
        half_of=meeting.half,
        deadline_s=5.0,
        observe=lambda _: None,
    )
    with pytest.raises(SessionError, match="began with resume; expected pairing"):
        engine.serve()
    meeting.close()


def test_a_codec_with_a_memory_is_refused_before_samples_are_named(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="lowrank-8 needs a basis or remembers"):
        Meeting(tmp_path).decode(terms(activation="lowrank-8"))

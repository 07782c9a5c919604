"""Words of a report: nothing from a log can hide, and every kind of message is explained."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from splitlearn.report.words import KINDS, LIMITS, instant, share, size, visible
from splitlearn.roles import Kind

ANY = st.text(st.characters(codec=None))


@given(ANY)
def test_no_control_or_turning_character_is_left(text: str) -> None:
    shown = visible(text)
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    shown.encode()


def test_a_long_text_is_cut_and_says_so() -> None:
    assert visible("a" * 161) == "a" * 160 + "..."
    assert visible("a" * 160) == "a" * 160


def test_every_kind_of_message_has_its_line() -> None:
    assert set(KINDS) == {kind.value for kind in Kind}


@given(st.floats())
def test_any_number_is_a_time_or_none(seconds: float) -> None:
    assert instant(seconds).endswith(("UTC", "no time"))


@given(st.integers(0, 2**63), st.floats(0, 1))
def test_sizes_and_shares_are_short(number: int, part: float) -> None:
    assert len(size(number)) <= 12
    assert len(share(part)) <= 7


def test_limits_claim_nothing() -> None:
    said = " ".join(LIMITS)
    for needed in ("must be assumed able to read the text", "lower bound", "labels can be read"):
        assert needed in said

"""One stream of messages in two logs: each way of differing, and which of them a crash explains."""

from typing import Literal

import msgspec
import pytest

from splitlearn.audit.findings import Exit
from splitlearn.audit.matching import CLASSES, Conversed, Difference, Stream
from splitlearn.audit.records import Payload
from splitlearn.roles import Kind
from tests.audit.test_records import OPEN, PAYLOAD


def said(number: int, **changes: object) -> Payload:
    return msgspec.structs.replace(PAYLOAD, message=number, commit=f"{number:064x}", **changes)


def talk(
    numbers: str,
    *,
    way: Literal["in", "out"],
    receipted: int = 0,
    closed: str | None = None,
    crashed: bool = False,
    **changes: object,
) -> Conversed:
    """A conversation of the messages `numbers`, each on the line ten times its place."""
    conversed = Conversed(OPEN, 0, receipted=receipted, closed=closed, crashed=crashed)
    for place, number in enumerate(numbers, start=1):
        payload = said(int(number), direction=way, **changes)
        conversed.add(payload, record=10 * place, parts=payload.parts)
    return conversed


def compared(
    sender: Conversed, receiver: Conversed, *, outward: bool = True
) -> tuple[list[tuple[str, int | None, int | None]], int]:
    """Class and records of each difference, and how many messages matched."""
    ours, theirs = (sender, receiver) if outward else (receiver, sender)
    direction: tuple[Literal["in", "out"], Literal["in", "out"]] = (
        ("out", "in") if outward else ("in", "out")
    )
    stream = Stream(ours, theirs, direction=direction[0], turned=direction[1])
    found = [(one.name, one.here, one.there) for one in stream.differences()]
    return found, stream.matched


def test_the_same_messages_match() -> None:
    assert compared(talk("123", way="out"), talk("123", way="in")) == ([], 3)
    assert compared(talk("123", way="out"), talk("123", way="in"), outward=False) == ([], 3)
    assert compared(Conversed(None, None), Conversed(None, None)) == ([], 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"commit": "a" * 64},
        {"wire_bytes": 999},
        {"kind": Kind.GRADIENT},
        {"parts": (msgspec.structs.replace(PAYLOAD.parts[0], shape=(32, 28)),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_message_that_differs_names_both_records_and_what(changes: dict[str, object]) -> None:
    sender, receiver = talk("12", way="out"), talk("1", way="in")
    other = msgspec.structs.replace(said(2, direction="in"), **changes)
    receiver.add(other, record=55, parts=other.parts)
    assert compared(sender, receiver) == ([("digest_mismatch", 20, 55)], 1)
    stream = Stream(sender, receiver, direction="out", turned="in")
    (difference,) = stream.differences()
    name = next(iter(changes)).replace("wire_bytes", "length")
    assert difference.sentence == f"run news, message 2 from here to there: another {name}"


# Sender's messages, receiver's, how far the receipt goes, the receiver's end, the sender's end.
MISSING: dict[str, tuple[str, str, int, str | None, str | None, list[str]]] = {
    "a tail that never arrived": ("1234", "12", 0, "failed", None, ["unreceipted_tail"]),
    "a tail after the receipt": ("1234", "12", 2, None, "failed", ["unreceipted_tail"]),
    "everything": ("12", "", 0, None, None, ["unreceipted_tail"]),
    "a tail under the receipt": ("1234", "12", 4, "failed", None, ["missing_at_peer"]),
    "a tail partly under it": (
        "1234",
        "12",
        3,
        None,
        None,
        ["missing_at_peer", "unreceipted_tail"],
    ),
    "in the middle": ("1234", "124", 0, None, None, ["missing_at_peer"]),
    "a tail that a finished receiver lacks": ("123", "12", 0, "done", "done", ["missing_at_peer"]),
    "what nobody sent": ("12", "123", 0, None, "done", ["missing_here"]),
    "what nobody sent, in the middle": ("13", "123", 0, None, None, ["missing_here"]),
    "what a machine forgot that went down": (
        "1",
        "123",
        0,
        "done",
        "crashed",
        ["unreceipted_tail"],
    ),
    "what a process left out that went on": ("1", "123", 0, None, None, ["missing_here"]),
    "a hole before what was forgotten": (
        "13",
        "1234",
        0,
        None,
        "crashed",
        ["missing_here", "unreceipted_tail"],
    ),
    "two stretches": ("1357", "37", 0, None, None, ["missing_at_peer", "missing_at_peer"]),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_in_one_log_only_is_explained_or_is_a_mismatch(name: str) -> None:
    sent, taken, receipted, receiver_end, sender_end, classes = MISSING[name]
    crashed = sender_end == "crashed"
    sender = talk(
        sent,
        way="out",
        receipted=receipted,
        closed=None if crashed else sender_end,
        crashed=crashed,
    )
    receiver = talk(taken, way="in", closed=receiver_end)
    found, matched = compared(sender, receiver)
    assert [kind for kind, *_ in found] == classes
    assert matched == len(set(sent) & set(taken))
    turned, _ = compared(sender, receiver, outward=False)
    other = {"missing_at_peer": "missing_here", "missing_here": "missing_at_peer"}
    assert [other.get(kind, kind) for kind, *_ in turned] == classes
    assert [(there, here) for _, here, there in turned] == [(h, t) for _, h, t in found]


def test_a_message_that_stands_twice_names_the_second() -> None:
    assert compared(talk("122", way="out"), talk("12", way="in")) == ([("duplicate", 30, None)], 2)
    assert compared(talk("12", way="out"), talk("1223", way="in"))[0][-1] == ("duplicate", None, 30)


def test_what_stands_twice_the_other_way_is_not_this_streams() -> None:
    sender, receiver = talk("12", way="out"), talk("12", way="in")
    for _ in range(2):
        sender.add(said(1, direction="in"), record=70, parts=())
    assert compared(sender, receiver) == ([], 2)


def test_messages_out_of_order_name_the_record() -> None:
    assert compared(talk("132", way="out"), talk("123", way="in")) == ([("order", 20, None)], 3)
    assert compared(talk("12", way="out"), talk("21", way="in")) == ([("order", None, 10)], 2)


def test_each_class_has_its_exit_code() -> None:
    assert {name for name, (code, _) in CLASSES.items() if code is not Exit.MISMATCH} == {
        "unreceipted_tail",
        "nothing_in_common",
    }
    assert Difference("fork", "two histories").exit is Exit.MISMATCH
    assert Difference("unreceipted_tail", "lost").exit is Exit.CLEAN

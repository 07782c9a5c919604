from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from splitlearn.coordination.answering import answer
from splitlearn.coordination.messages import content_of, reading_of
from splitlearn.errors import RefusedError
from tests.coordination.test_messages import message


def context(**node_config: str | int) -> Context:
    return Context(
        run_id=1, node_id=2, node_config=dict(node_config), state=RecordDict(), run_config={}
    )


def ask(content: RecordDict, stream: object, **node_config: str | int) -> bytes | str:
    asked = message(content)
    reply = answer(asked, context(**node_config), stream=stream)  # type: ignore[arg-type]
    assert isinstance(reply, Message)
    assert reply.metadata.dst_node_id == asked.metadata.src_node_id
    return reading_of(reply)


def test_the_settings_and_the_descriptor_reach_the_round_and_its_report_comes_back() -> None:
    def stream(settings: Path, descriptor: bytes, processes: int) -> bytes:
        return f"{settings} {processes} ".encode() + descriptor

    assert ask(content_of(b"round"), stream, settings="/a/b.toml") == b"/a/b.toml 0 round"
    told = ask(content_of(b"round"), stream, settings="/a/b.toml", processes=2)
    assert told == b"/a/b.toml 2 round"


def test_a_node_whose_number_of_processes_is_none_says_so() -> None:
    told = ask(content_of(b""), lambda *_: b"", settings="/a", processes=-1)
    assert told == "processes is -1; expected a whole number from 0 to 1024"


def test_an_error_of_ours_is_answered_in_its_own_sentence() -> None:
    def stream(*_: object) -> bytes:
        raise RefusedError("policy says\nno", rule="r")

    assert ask(content_of(b""), stream, settings="/a") == "policy says no"


def test_any_other_error_is_answered_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    def stream(*_: object) -> bytes:
        raise KeyError("a sentence of somebody's text")

    told = ask(content_of(b""), stream, settings="/a")
    assert told == "KeyError at the generator; its own log says where"
    assert "a round ended in a fault" in caplog.text


def test_a_report_that_is_too_long_and_a_node_without_settings_are_told() -> None:
    assert "at most" in str(ask(content_of(b""), lambda *_: bytes(2**20), settings="/a"))
    assert "splitlearn generator run" in str(ask(content_of(b""), lambda *_: b""))


def test_what_is_no_descriptor_never_reaches_the_round() -> None:
    def stream(*_: object) -> bytes:
        raise AssertionError

    told = ask(RecordDict({"round": ConfigRecord({"descriptor": "x"})}), stream, settings="/a")
    assert told == "message that opens a round carries no bytes"

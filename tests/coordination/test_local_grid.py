import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.supercore.run import Run

from splitlearn.coordination.answering import answer
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.messages import content_of, reading_of

app = ClientApp()


@app.query()
def stream(message: Message, context: Context) -> Message:
    def work(settings: Path, descriptor: bytes, _processes: int) -> bytes:
        return settings.name.encode() + b" " + descriptor

    return answer(message, context, stream=work)


@app.train()
def fail(message: Message, context: Context) -> Message:
    raise ValueError("not told")


@pytest.fixture
def grid() -> Iterator[LocalGrid]:
    with LocalGrid(app) as grid:
        yield grid


def to(node: int, kind: str = "query") -> Message:
    return Message(content_of(b"hello"), dst_node_id=node, message_type=kind)


def test_nodes_come_and_go_and_come_back_under_their_number(grid: LocalGrid) -> None:
    anna = grid.join("anna", settings=Path("a"))
    bert = grid.join("bert", settings=Path("b"))
    assert list(grid.get_node_ids()) == [anna, bert]
    first = {node.name: node.last_activated_at for node in grid.get_nodes()}
    grid.leave("anna")
    assert list(grid.get_node_ids()) == [bert]
    assert grid.join("anna", settings=Path("a")) == anna
    again = {node.name: node.last_activated_at for node in grid.get_nodes()}
    assert again["bert"] == first["bert"]
    assert again["anna"] != first["anna"]


def test_messages_are_answered_each_once_by_the_real_app(grid: LocalGrid) -> None:
    nodes = [grid.join(name, settings=Path(name)) for name in ("anna", "bert")]
    replies = list(grid.send_and_receive([to(node) for node in nodes], timeout=20))
    assert [reading_of(reply) for reply in replies] == [b"anna hello", b"bert hello"]
    (number,) = grid.push_messages([to(nodes[0])])
    done = threading.Event()
    grid._futures[number].add_done_callback(lambda _: done.set())
    assert done.wait(20)
    (reply,) = grid.pull_messages([number, "unknown"])
    assert reply.metadata.reply_to_message_id == number
    assert grid.pull_messages([number]) == []


def test_an_app_that_raises_is_answered_with_an_error(grid: LocalGrid) -> None:
    node = grid.join("anna", settings=Path("a"))
    (reply,) = grid.send_and_receive([to(node, "train")], timeout=20)
    assert reply.error == Error(code=2, reason="ValueError")


def test_the_run_is_the_one_that_was_set_and_a_message_may_be_made_the_old_way(
    grid: LocalGrid,
) -> None:
    assert grid.run.run_id == 1
    other = Run.create_empty(7)
    grid.set_run(other)
    assert grid.run is other
    node = grid.join("anna", settings=Path("a"))
    made = grid.create_message(to(node).content, "query", node, "1", 60.0)
    (reply,) = grid.send_and_receive([made], timeout=20)
    assert reading_of(reply) == b"a hello"

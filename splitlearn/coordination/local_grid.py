"""A Grid without a SuperLink: nodes are threads of this process. For tests and notebooks.

Messages are flwr's own and the ClientApp is the one that a real node runs; a round takes milliseconds.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from splitlearn.coordination.version import check_version

__all__ = ["LocalGrid"]

_RUN = 1
_MOST_NODES = 64


class LocalGrid(Grid):
    """Calls `app` once for each message, in a thread of its own; nodes come and go by name.

    Used as a context manager, or closed; the threads of rounds that still run are waited for.
    """

    def __init__(self, app: ClientApp) -> None:
        check_version()
        # Every Message asks this for its run and its sender.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = _RUN, 1, 1
        self._app = app
        self._run = Run.create_empty(_RUN)
        self._nodes: dict[int, _Node] = {}
        self._futures: dict[str, Future[Message]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_MOST_NODES, thread_name_prefix="node")
        self._joined = 0
        self._sent = 0

    def join(self, party: str, *, settings: Path, processes: int = 0) -> int:
        """Have a node of `party` come, or come back; return its number.

        settings, processes: the node's configuration, as SuperNode has it.
        """
        with self._lock:
            known = next((n for n in self._nodes.values() if n.party == party), None)
            self._joined += 1
            number = known.number if known else 1000 + self._joined
            context = Context(
                run_id=_RUN,
                node_id=number,
                node_config={"settings": str(settings), "processes": processes},
                state=RecordDict(),
                run_config={},
            )
            self._nodes[number] = _Node(number, party, context, began=str(self._joined))
        return number

    def leave(self, party: str) -> None:
        """Have the node of `party` go; a message that it works on is answered all the same."""
        with self._lock:
            for node in self._nodes.values():
                node.present = node.present and node.party != party

    def close(self) -> None:
        """Wait for the nodes' threads to end."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "LocalGrid":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_run(self, run: Run) -> None:
        """Which run this is, for whoever asks."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that was set; else one that only has a number."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As flwr has it, though its Message is made directly nowadays."""
        return Message(
            content,
            dst_node_id=dst_node_id,
            message_type=message_type,
            ttl=ttl,
            group_id=group_id,
        )

    def get_node_ids(self) -> Iterable[int]:
        """Numbers of the nodes that are there."""
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """The nodes that are there, as the SuperLink would list them."""
        with self._lock:
            return [
                NodeInfo(node_id=node.number, name=node.party, last_activated_at=node.began)
                for node in self._nodes.values()
                if node.present
            ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start work on each message; return their numbers."""
        numbers = []
        for message in messages:
            with self._lock:
                self._sent += 1
                number = f"message-{self._sent}"
                node = self._nodes[message.metadata.dst_node_id]
            # As a SuperLink sets them on the way.
            message.metadata.__dict__["_message_id"] = number
            message.metadata.__dict__["_run_id"] = _RUN
            self._futures[number] = self._pool.submit(self._work, message, node)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that are there, each once."""
        asked = [number for number in message_ids if number in self._futures]
        return [self._futures.pop(n).result() for n in asked if self._futures[n].done()]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to all messages, in their order. TimeoutError where one takes longer."""
        futures = [self._futures[number] for number in self.push_messages(messages)]
        return [future.result(timeout) for future in futures]

    def _work(self, message: Message, node: "_Node") -> Message:
        try:
            with node.busy:
                reply = self._app(message=message, context=node.context)
        except Exception as error:  # noqa: BLE001
            reply = Message(Error(code=2, reason=type(error).__name__), reply_to=message)
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        return reply


@dataclass
class _Node:
    number: int
    party: str
    context: Context
    began: str
    present: bool = field(default=True)
    # A real node works on one message at a time, too.
    busy: threading.Lock = field(default_factory=threading.Lock)

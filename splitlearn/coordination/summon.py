"""Opening a round at whoever is there, and at who comes while it lasts; taking in what they answer.

Nothing here waits for a node: whether one is alive is known from its stream, not from Flower.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from splitlearn.coordination.flower_faults import FAULTS, app_crashed, explained, node_is_away
from splitlearn.coordination.messages import QUERY, content_of, reading_of

__all__ = ["GridSummon", "Reply", "Summon"]


@dataclass(frozen=True)
class Reply:
    """One node's answer to a round: its report, or the sentence that came in its place.

    party: the name in its certificate. Exactly one of report and refusal is not None.
    """

    node: int
    party: str
    report: bytes | None = None
    refusal: str | None = None


class Summon(Protocol):
    """How a discriminator calls its generators to a round. Used by one thread."""

    def nodes(self) -> dict[int, str]:
        """Who is there now: node number to party's name. Raises ChannelError."""

    def open(self, descriptor: bytes, ttl_s: float) -> None:
        """Send a round to everybody who is there, and in later polls to everybody who comes.

        ttl_s: how long the round and its answers take at most. A node whose process was started again
        since it got the round gets it again, and only this process's answer counts. Ends the round before.
        Raises WireError (too long) or ChannelError.
        """

    def poll(self) -> list[Reply]:
        """Answers that came since the last poll; looks, and does not wait. Raises ChannelError.

        A node that goes away gives none, and gets the round again when it comes back; so does one whose
        app was killed, twice at most.
        """

    def close(self) -> None:
        """Forget the round; answers that come later are nobody's."""


# Once may be somebody's kill, thrice is a fault that another try will not mend.
_MOST_CRASHES = 2


@dataclass
class GridSummon:
    """`Summon` over Flower's Grid.

    every_s: seconds between two looks at who is there, for the SuperLink answers each from its disk.
    """

    grid: Grid
    every_s: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _round: int = field(default=0, init=False)
    _open: "_Opened | None" = field(default=None, init=False)

    def nodes(self) -> dict[int, str]:
        """See Summon."""
        return {number: party for number, (party, _) in self._present().items()}

    def open(self, descriptor: bytes, ttl_s: float) -> None:
        """See Summon."""
        content_of(descriptor)
        self._round += 1
        now = self.clock()
        self._open = _Opened(descriptor=descriptor, ends=now + ttl_s, group=str(self._round))
        self._send(self._open, now=now)

    def poll(self) -> list[Reply]:
        """See Summon."""
        opened = self._open
        if opened is None:
            return []
        now = self.clock()
        if now >= opened.looks:
            self._send(opened, now=now)
        if not opened.waiting:
            return []
        replies = []
        for message in self._pull(list(opened.waiting)):
            number = message.metadata.reply_to_message_id
            # A node whose line was cut may still have its answer, so it stays awaited.
            if number not in opened.waiting or node_is_away(message):
                continue
            sent = opened.waiting.pop(number)
            if app_crashed(message) and opened.crashes.get(sent.node, 0) < _MOST_CRASHES:
                opened.crashes[sent.node] = opened.crashes.get(sent.node, 0) + 1
                opened.sent.pop(sent.node, None)
                continue
            read = reading_of(message)
            replies.append(
                Reply(
                    node=sent.node,
                    party=sent.party,
                    report=read if isinstance(read, bytes) else None,
                    refusal=read if isinstance(read, str) else None,
                )
            )
        return replies

    def close(self) -> None:
        """See Summon."""
        self._open = None

    def _present(self) -> dict[int, tuple[str, str]]:
        """Node number to its party's name and the moment at which its process began."""
        try:
            found = list(self.grid.get_nodes())
        except FAULTS as error:
            raise explained(error) from None
        return {node.node_id: (node.name, node.last_activated_at) for node in found}

    def _send(self, opened: "_Opened", *, now: float) -> None:
        """Send the round to each node whose present process has not got it."""
        opened.looks = now + self.every_s
        left_s = opened.ends - now
        if left_s <= 0:
            return
        present = self._present()
        new = {node: seen for node, seen in present.items() if opened.sent.get(node) != seen[1]}
        if not new:
            return
        messages = [
            Message(
                content_of(opened.descriptor),
                dst_node_id=node,
                message_type=QUERY,
                ttl=left_s,
                group_id=opened.group,
            )
            for node in new
        ]
        try:
            numbers = list(self.grid.push_messages(messages))
        except FAULTS as error:
            raise explained(error) from None
        for (node, (party, began)), number in zip(new.items(), numbers, strict=False):
            if number:
                opened.forget(node)
                opened.sent[node] = began
                opened.waiting[number] = _Sent(node=node, party=party)

    def _pull(self, numbers: list[str]) -> list[Message]:
        try:
            return list(self.grid.pull_messages(numbers))
        except FAULTS as error:
            raise explained(error) from None


@dataclass(frozen=True)
class _Sent:
    node: int
    party: str


@dataclass
class _Opened:
    """sent: node to the beginning of the process that the round was sent to. waiting: by message.

    crashes: how often a node's app ended without a word in this round.
    """

    descriptor: bytes
    ends: float
    group: str
    looks: float = 0.0
    sent: dict[int, str] = field(default_factory=dict)
    waiting: dict[str, _Sent] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)

    def forget(self, node: int) -> None:
        """Wait no more for what an earlier process of this node was sent."""
        self.waiting = {number: sent for number, sent in self.waiting.items() if sent.node != node}

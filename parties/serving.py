"""The life of a party that is asked: wait for whoever asks, serve, wait for the next."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parties.reach import Reach
    from splitlearn.channel import Conversation

__all__ = ["serve_runs"]


def serve_runs(reach: "Reach", *, runs: int, serve: Callable[["Conversation"], None]) -> None:
    """Serve until so many runs are finished; 0: for ever. One that fails is told, and the next awaited."""
    from parties.console import console
    from splitlearn.errors import ChannelError, PeerError, RefusedError

    done = 0
    while not runs or done < runs:
        console.print(f"waiting for work from {reach.name.dns}", markup=False)
        channel = reach.find_patiently(run="")
        try:
            serve(channel)
            done += 1
        except (ChannelError, PeerError, RefusedError) as error:
            console.print(f"run not finished: {error}", markup=False)

"""What flwr lets through when a SuperLink, a run or a node is gone, and what it answers in its place."""

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.run import RunNotRunningException

from splitlearn.errors import ChannelError, SplitLearnError

__all__ = ["FAULTS", "app_crashed", "explained", "node_is_away"]

# The second derives from BaseException, so that apps that catch everything stop all the same.
FAULTS: tuple[type[BaseException], ...] = (httpx.HTTPError, RunNotRunningException, RuntimeError)


def explained(error: BaseException) -> SplitLearnError:
    """The sentence for one of FAULTS."""
    if isinstance(error, RunNotRunningException):
        return ChannelError("this run was stopped at the coordinator; start it again to go on")
    return ChannelError(
        f"the SuperLink cannot be asked ({type(error).__name__}); is splitlearn coordinator up "
        "still running?"
    )


def node_is_away(reply: Message) -> bool:
    """Whether Flower itself made this reply, for a node that has gone and may come back."""
    return reply.has_error() and reply.error.code in _AWAY


def app_crashed(reply: Message) -> bool:
    """Whether Flower made this reply because the ClientApp's process ended without a word."""
    return reply.has_error() and reply.error.code == ErrorCode.CLIENT_APP_CRASHED


_AWAY = {
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
}

"""What flwr lets through when it cannot reach its SuperLink, or when a run has been stopped."""

import httpx
from flwr.supercore.run import RunNotRunningException

from splitlearn.errors import ChannelError, SplitLearnError

__all__ = ["FAULTS", "explained"]

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

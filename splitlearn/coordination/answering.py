"""A node's side of a round: what a ClientApp does with the message that opens one.

Thin on purpose: checks what came, hands a bounded descriptor to the function that streams the round, and
answers with its report or with one sentence. Neither a text nor a trace leaves in an answer.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message

from splitlearn.coordination.messages import descriptor_of, number_of, refusal_of, reply_of
from splitlearn.errors import ManifestError, SplitLearnError

__all__ = ["answer"]

_LOGGER = logging.getLogger("splitlearn.coordination")


def answer(
    message: Message, context: Context, *, stream: Callable[[Path, bytes, int], bytes]
) -> Message:
    """Have `stream(settings, descriptor, processes)` work through one round; its report is the reply.

    settings: the file that the node's own people named; processes: how many share a batch, 0 for what
    the file says. Both are from the node's configuration, not from the message.
    """
    try:
        processes = number_of(context.node_config, "processes")
        reply = reply_of(stream(_settings(context), descriptor_of(message), processes))
    except SplitLearnError as error:
        reply = refusal_of(" ".join(str(error).split()))
    except Exception as error:
        _LOGGER.exception("a round ended in a fault of ours")
        reply = refusal_of(f"{type(error).__name__} at the generator; its own log says where")
    return Message(reply, reply_to=message)


def _settings(context: Context) -> Path:
    named = context.node_config.get("settings")
    if not isinstance(named, str) or not named:
        raise ManifestError("this node was started without settings; use splitlearn generator run")
    return Path(named)

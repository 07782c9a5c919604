"""The generator as Flower knows it: a ClientApp that streams one round for each message.

Flower imports this in a process of its own; torch comes with the round, not with the import.
"""

import importlib
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from splitlearn.coordination.answering import answer
from splitlearn.coordination.parent import ends_with_its_parent

__all__ = ["app"]

app = ClientApp()


@app.query()
def stream(message: Message, context: Context) -> Message:
    """Work through the round that `message` opens, with the settings that this node was given."""
    with ends_with_its_parent():
        return answer(message, context, stream=_stream_round)


def _stream_round(settings: Path, descriptor: bytes, processes: int) -> bytes:
    stream_round = importlib.import_module("parties.generating").stream_round
    report: bytes = stream_round(settings, descriptor, processes=processes)
    return report

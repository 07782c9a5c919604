"""A node's process: `python -m splitlearn.coordination.node ORDERS`, started by `supernode` only.

It lives as long as its standard input is open; so it ends when its parent does, however that goes.
"""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

__all__ = ["live_with_parent", "main"]

# Flower's exit handlers take up to five seconds, a killed ClientApp none.
_PARTING_S = 6.0


def main(orders: Path) -> None:
    """Run the node that the file `orders` describes, until its parent or Flower ends it."""
    threading.Thread(target=live_with_parent, name="parent", daemon=True).start()
    # Takes seconds, in which the parent may already want an end.
    importlib.import_module("splitlearn.coordination.flower_node").run(orders)


def live_with_parent() -> None:
    """Wait until standard input is closed; then end this process, and what it started, in order."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PARTING_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A process that has imported what a party imports, and becomes one party for each order it reads.

Importing torch and transformers takes longer than a whole tiny run. A party forked from here is an
OS process like any other, with its own number, files and end; only the imports are not done again.

Reads one JSON order a line, answers with one JSON line: {"start": arguments, "folder": where,
"output": file} gives a process number, {"poll": number} its exit code or null.
"""

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

# What both parties import on their way, so that a fork has nothing left to load.
_MODULES = (
    "parties.compute",
    "parties.console",
    "parties.reach",
    "parties.trusted",
    "splitlearn.channel.dialler",
    "splitlearn.channel.listener",
    "splitlearn.engine.compute.engine",
    "splitlearn.engine.job.prepare",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
)


def main() -> None:
    """Serve orders until there are no more, then take every party along."""
    for module in _MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a fork would lose these threads"
    children: dict[int, int | None] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            _say(_poll(children, order["poll"]))
            continue
        pid = os.fork()
        if pid == 0:
            _become(order["start"], folder=Path(order["folder"]), output=Path(order["output"]))
            return
        children[pid] = None
        _say(pid)
    for pid in children:
        if _poll(children, pid) is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _poll(children: dict[int, int | None], pid: int) -> int | None:
    if children[pid] is None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children[pid] = os.waitstatus_to_exitcode(status)
    return children[pid]


def _become(arguments: Sequence[str], *, folder: Path, output: Path) -> None:
    """Be `splitlearn ARGUMENTS` from here on, and end with its exit code."""
    from parties import cli

    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    sys.argv = ["splitlearn", *arguments]
    code: object = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    # At its own end an interpreter would walk through all of torch, and a fork copy it on the way.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _say(answer: int | None) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Small stand-ins for what trains, for processes that a test starts with this folder on PYTHONPATH.

Python imports a module of this name by itself. Nothing else in those processes is a test's. It also
notes every address outside this machine that a process looks up or connects to.
"""

import ipaddress
import json
import os
import sys
import time
import tomllib
import types
from pathlib import Path


def stream_round(settings: Path, descriptor: bytes) -> bytes:
    """A round that takes as long as it is told to, and reports whose text it was and which process."""
    told = json.loads(descriptor)
    table = tomllib.loads(settings.read_text(encoding="utf-8"))
    (settings.parent / "working").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(told.get("takes_s", 0.0))
    report = {
        "round": told["round"],
        "text": table["text"]["says"],
        "torch": "torch" in sys.modules,
    }
    return json.dumps(report).encode()


def conduct(job: Path, summon) -> None:  # type: ignore[no-untyped-def]
    """As many rounds as the job says, each until all its parties have answered; goes on where it was."""
    table = tomllib.loads(job.read_text(encoding="utf-8"))
    folder = job.parent / table["run"]["folder"]
    log = folder / "rounds.jsonl"
    (folder / "conductor").write_text(str(os.getpid()), encoding="utf-8")
    done = len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0
    wanted = set(table["test"]["parties"])
    for number in range(done, table["test"]["rounds"]):
        told = {"round": number, "takes_s": table["test"].get("takes_s", 0.0)}
        summon.open(json.dumps(told).encode(), 600.0)
        answers = {}
        while set(answers) != wanted:
            for reply in summon.poll():
                answers[reply.party] = reply.refusal or json.loads(reply.report)
            time.sleep(0.1)
        summon.close()
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answers, sort_keys=True) + "\n")
        sys.stdout.write(f"round {number} is done\n")
        sys.stdout.flush()
    (folder / "finished.json").write_text("{}", encoding="utf-8")


def note_calls(event: str, arguments: tuple) -> None:  # type: ignore[type-arg]
    """An audit hook (PEP 578)."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    try:
        near = host in {None, "localhost", ""} or ipaddress.ip_address(host).is_loopback
    except ValueError:
        near = False
    if not near:
        with Path(os.environ["SPLITLEARN_TEST_CALLS"]).open("a", encoding="utf-8") as file:
            file.write(f"{sys.argv[0]}: {event} {host}\n")


if "SPLITLEARN_TEST_CALLS" in os.environ:
    sys.addaudithook(note_calls)

for _name, _function in (("generating", stream_round), ("discriminating", conduct)):
    _module = types.ModuleType(f"parties.{_name}")
    vars(_module)[_function.__name__] = _function
    sys.modules[_module.__name__] = _module

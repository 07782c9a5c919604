import signal
import subprocess
import sys

PROGRAM = """
import signal, threading, time
from splitlearn.coordination import node
node._PARTING_S = 0.3
threading.Thread(target=node.live_with_parent, daemon=True).start()
{stubborn}
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def live(stubborn: str) -> int:
    """Exit code of a process that lives with us, once its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(stubborn=stubborn)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdin.close()
        return process.wait(20)


def test_it_is_asked_to_end_when_its_parent_is_gone() -> None:
    orderly = "signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(7)))"
    assert live(orderly) == 7


def test_one_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert live(stubborn) == -signal.SIGKILL

"""A coordinator, two generators and a job as their people start them: processes, TLS, real Flower.

What trains is replaced by small functions (`rounds_hooks`). Everything runs where nothing but loopback
can be reached, where the system permits such a place, and every call outside is noted wherever it runs.
The tests share the processes and run in their order.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from splitlearn.coordination.claims import held
from tests.federation import make_identity
from tests.netns import Place, only_loopback

ROOT = Path(__file__).parents[2]
HOOKS = Path(__file__).parent / "rounds_hooks"
PARTIES = ("anna", "bert")
FLEET, CONTROL = 28471, 28472
# A fact that has not come by then never will; on a busy machine each of Flower's processes takes ten
# seconds to begin.
PATIENCE_S = 150.0

NODE = """
[identity]
folder = "../{party}-generator"
[coordinator]
address = "127.0.0.1:{port}"
party = "trainer"
[text]
says = "what {party} says"
"""

JOB = """
[run]
folder = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
[test]
parties = ["anna", "bert"]
rounds = {rounds}
takes_s = {takes_s}
"""


@dataclass
class Organisations:
    """All parties on one machine, in `folder`."""

    folder: Path
    place: Place
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    began: int = 0

    def start(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        self.began += 1
        with (self.folder / f"{name}.out").open("ab") as output:
            self.running[name] = subprocess.Popen(
                [*self.place.prefix, sys.executable, "-m", "parties.cli", *arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join((str(HOOKS), str(ROOT))),
                    "SPLITLEARN_TEST_CALLS": str(self.folder / "calls"),
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self.running[name]

    def coordinate(self) -> None:
        self.start(
            *("coordinator", "coordinator", "up", "--folder", "trainer-discriminator"),
            *("--port", str(FLEET), "--control-port", str(CONTROL)),
        )

    def generate(self, party: str) -> None:
        self.start(party, "generator", "run", f"{party}/generator.toml")

    def pretrain(self, name: str, **settings: object) -> "subprocess.Popen[bytes]":
        told = {"rounds": 1, "takes_s": 0.0, **settings}
        text = JOB.format(name=name, port=CONTROL, **told)
        (self.folder / f"{name}.toml").write_text(text, encoding="utf-8")
        return self.start(f"{name}-pretrain", "pretrain", f"{name}.toml")

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def rounds(self, job: str) -> list[dict[str, dict[str, object]]]:
        path = self.folder / job / "rounds.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def works(self, party: str) -> None:
        """Wait until the party begins to work on a round."""
        mark = self.folder / party / "working"
        mark.unlink(missing_ok=True)
        self.until(mark.exists)

    def until(self, fact: Callable[[], object]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not fact():
            assert time.monotonic() < ends, self.story()
            time.sleep(0.05)

    def wait(self, process: "subprocess.Popen[bytes]") -> int:
        self.until(lambda: process.poll() is not None)
        code = process.poll()
        assert code is not None
        return code

    def story(self) -> str:
        found = sorted(self.folder.glob("*.out"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3_000:]}" for path in found)

    def left(self) -> list[str]:
        """Commands of processes that somebody here started and that still run."""
        mark = f"SPLITLEARN_TEST_CALLS={self.folder / 'calls'}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return [command for command in found if command]

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisations]:
    folder = tmp_path_factory.mktemp("rounds")
    make_identity(folder, "trainer", "discriminator")
    with only_loopback() as place:
        all_of_them = Organisations(folder, place)
        for party in PARTIES:
            make_identity(folder, party, "generator")
            (folder / party).mkdir()
            text = NODE.format(party=party, port=FLEET)
            (folder / party / "generator.toml").write_text(text, encoding="utf-8")
        try:
            all_of_them.coordinate()
            for party in PARTIES:
                all_of_them.generate(party)
            yield all_of_them
        finally:
            all_of_them.close()


# A dozen processes of two to five seconds of processor time each: a minute on two cores of one's own.
@pytest.mark.timeout(900)
def test_a_job_survives_a_killed_generator_an_interruption_and_a_killed_coordinator(
    parties: Organisations,
) -> None:
    job = parties.pretrain("first", rounds=3, takes_s=0.5)
    parties.until(lambda: len(parties.rounds("first")) == 1)
    expected = {
        party: {"round": 0, "text": f"what {party} says", "torch": False} for party in PARTIES
    }
    assert parties.rounds("first")[0] == expected
    # A generator dies in the middle of a round, is started again, and is called to it again.
    parties.works("bert")
    parties.running["bert"].kill()
    parties.running["bert"].wait()
    parties.generate("bert")
    parties.until(lambda: len(parties.rounds("first")) == 2)
    # Ctrl-C in the middle of a round: the run ends, and nobody conducts the job any more.
    job.send_signal(signal.SIGINT)
    assert parties.wait(job) == 130, parties.story()
    assert "run splitlearn pretrain first.toml again to go on" in parties.said("first-pretrain")
    assert len(parties.rounds("first")) == 2
    assert not held(parties.folder / "first" / ".conducting")
    # The same command goes on. The coordinator dies, with it the run, and the job goes on in another.
    job = parties.pretrain("first", rounds=3)
    parties.until(lambda: held(parties.folder / "first" / ".conducting"))
    parties.running["coordinator"].kill()
    parties.running["coordinator"].wait()
    parties.coordinate()
    assert parties.wait(job) == 0, parties.story()
    found = parties.rounds("first")
    for party in PARTIES:
        assert [answers[party]["round"] for answers in found] == [0, 1, 2]
    said = parties.said("first-pretrain")
    assert "going on in a new run, 2 of at most 10" in said
    assert "round 0 is done" in said
    assert "finished; results lie in first" in said
    # Nodes kept their numbers, and a generator that nobody touched is as it was.
    assert parties.said("coordinator").count("registered bert") == 1
    assert parties.running["anna"].poll() is None


def test_a_finished_job_is_not_begun_again(parties: Organisations) -> None:
    assert parties.wait(parties.pretrain("first", rounds=3)) == 0
    assert "the job in first is finished" in parties.said("first-pretrain")


def test_nodes_are_listed_and_ctrl_c_ends_everything_and_leaves_nothing_behind(
    parties: Organisations,
) -> None:
    listing = parties.start("nodes", "coordinator", "nodes", "--address", f"127.0.0.1:{CONTROL}")
    assert parties.wait(listing) == 0
    assert parties.said("nodes").splitlines() == ["anna\tonline", "bert\tonline"]
    for name, code in (("anna", 130), ("bert", 130), ("coordinator", 0)):
        parties.running[name].send_signal(signal.SIGINT)
        assert parties.wait(parties.running[name]) == code, parties.story()
    parties.until(lambda: not parties.left())


def test_nothing_outside_this_machine_was_called(parties: Organisations) -> None:
    assert parties.began > 0
    assert not (parties.folder / "calls").exists(), (parties.folder / "calls").read_text()

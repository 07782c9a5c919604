"""A hub and two generators as their people start them: processes, TLS, real Flower, real training.

Everything runs where nothing but loopback can be reached, where the system permits such a place, and
every call outside is noted wherever it runs. The tests share the processes and run in their order.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from splitlearn import audit
from splitlearn.audit import Payload, read_records
from splitlearn.coordination.claims import held
from splitlearn.engine.streams.progress import Shelf
from tests.netns import Place, only_loopback
from tests.tongues import Tongues, tongues

ROOT = Path(__file__).parents[2]
HOOKS = Path(__file__).parent / "call_hooks"
LANGUAGES = {"anna": "aa", "bert": "bb"}
FLEET, CONTROL, LISTEN = 28471, 28472, 28473
ROUNDS, STEPS, SAVE_EVERY = 3, 300, 20
# A fact that has not come by then never will; on a busy machine each of Flower's processes takes ten
# seconds to begin.
PATIENCE_S = 300.0


@dataclass
class Organisations:
    """All parties on one machine, with the files of `made`."""

    made: Tongues
    place: Place
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    began: int = 0

    @property
    def folder(self) -> Path:
        return self.made.folder

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
            *("coordinator", "coordinator", "up", "--folder", "hub-discriminator"),
            *("--port", str(FLEET), "--control-port", str(CONTROL)),
        )

    def generate(self, party: str) -> None:
        self.start(party, "generator", "run", f"{party}.toml")

    def pretrain(self) -> "subprocess.Popen[bytes]":
        return self.start("pretrain", "pretrain", "pretrain.toml")

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        path = self.made.run / "events.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith(b"}")]
        return [event for event in found if event["event"] in kinds]

    def trains(self, *, beyond: int = 0) -> int:
        """Wait until the newest process trains, past the step `beyond`; the step."""

        def step() -> int:
            told = self.events("begin", "steps")
            return told[-1]["step"] if told and told[-1]["event"] == "steps" else 0

        self.until(lambda: step() > beyond)
        return step()

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
        found = [*sorted(self.folder.glob("*.out")), self.made.run / "events.jsonl"]
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3_000:]}" for path in found if path.exists()
        )

    def kill(self, what: str) -> None:
        """The processes with `what` in their command, and until nothing is left of them."""

        def those() -> list[int]:
            return [number for number, command in self.left().items() if what in command]

        found = those()
        assert found, self.story()
        for number in found:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self.until(lambda: not set(found) & set(those()))

    def left(self) -> dict[int, str]:
        """Processes that somebody here started and that still run, with their commands."""
        mark = f"SPLITLEARN_TEST_CALLS={self.folder / 'calls'}".encode()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(process.name)] = command
            except OSError:
                continue
        return {number: command for number, command in found.items() if command}

    def close(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for number in self.left():
            os.kill(number, signal.SIGKILL)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Organisations]:
    made = tongues(
        tmp_path_factory.mktemp("rounds"),
        LANGUAGES,
        rounds=ROUNDS,
        steps=STEPS,
        save_every=SAVE_EVERY,
        port=FLEET,
        control=CONTROL,
        listen=LISTEN,
    )
    with only_loopback() as place:
        all_of_them = Organisations(made, place)
        try:
            all_of_them.coordinate()
            for party in LANGUAGES:
                all_of_them.generate(party)
            yield all_of_them
        finally:
            all_of_them.close()


# Two dozen processes of two to eight seconds of processor time each: some minutes on two cores.
@pytest.mark.timeout(1200)
def test_a_run_survives_the_death_of_everybody_in_turn(parties: Organisations) -> None:
    job = parties.pretrain()
    parties.trains()
    # A generator is killed in the middle of a round: the other one is trained on meanwhile.
    parties.running["bert"].kill()
    parties.running["bert"].wait()
    before = len(parties.events("joined"))
    parties.generate("bert")
    parties.until(lambda: [e["party"] for e in parties.events("joined")[before:]].count("bert"))
    # The discriminator is killed in the middle of a round: it goes on from its newest checkpoint.
    parties.trains(beyond=parties.events("steps")[-1]["step"] + SAVE_EVERY)
    begun = len(parties.events("begin"))
    parties.kill("flwr-serverapp")
    # It may have died after a checkpoint was whole and before it was told of.
    newest = Shelf(parties.made.run / "checkpoints").held()[-1]
    parties.until(lambda: len(parties.events("begin")) > begun)
    assert parties.events("begin")[begun]["step"] == newest >= SAVE_EVERY
    # Ctrl-C: the run ends, and nobody conducts the job any more.
    parties.trains()
    job.send_signal(signal.SIGINT)
    assert parties.wait(job) == 130, parties.story()
    assert "run splitlearn pretrain pretrain.toml again to go on" in parties.said("pretrain")
    assert not held(parties.made.run / ".conducting")
    # The same command goes on. The coordinator dies, with it the run, and the job goes on in another.
    job = parties.pretrain()
    parties.until(lambda: held(parties.made.run / ".conducting"))
    parties.running["coordinator"].kill()
    parties.running["coordinator"].wait()
    parties.coordinate()
    assert parties.wait(job) == 0, parties.story()
    metrics = json.loads((parties.made.run / "metrics.json").read_text())
    assert metrics["steps"] == ROUNDS * STEPS
    assert len(metrics["rounds"]) == ROUNDS
    assert set(metrics["auc"]) == {"aa", "bb", "worst"}
    assert "finished; results lie in" in parties.said("pretrain")
    # A generator that nobody touched is as it was, and the other kept its number.
    assert parties.running["anna"].poll() is None
    assert parties.said("coordinator").count("registered bert") == 1


def test_no_batch_was_taken_twice_and_the_logs_of_both_ends_agree(parties: Organisations) -> None:
    for party in LANGUAGES:
        ours = parties.made.run / f"audit-{party}"
        theirs = parties.folder / party / "run" / "tongues" / "audit"
        taken = [
            record.step
            for _, record in read_records(ours)
            if isinstance(record, Payload) and record.kind == "ids" and record.phase == "train"
        ]
        assert len(taken) > 100
        assert all(a is not None and b is not None and a < b for a, b in itertools.pairwise(taken))
        for log in (ours, theirs):
            assert audit.verify(log).exit == 0
        assert audit.reconcile(ours, theirs).exit == 0


def test_a_finished_job_is_not_begun_again(parties: Organisations) -> None:
    assert parties.wait(parties.pretrain()) == 0
    assert "is finished; choose another run.folder" in parties.said("pretrain")


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

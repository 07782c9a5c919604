"""Two organisations on one machine, for tests: a federation, two parties' files, and their processes.

A clinic trains (trusted), a gpuhost hosts the layers between (compute), over a link that a test can
cut. Tests wait for facts: lines that a process wrote, records in its log, its end.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel, BertTokenizerFast
from typer.testing import CliRunner

from parties import cli
from tests.federation import make_identity
from tests.link import LinkProxy

__all__ = [
    "COMPUTE",
    "DEADLINE_S",
    "JOB",
    "POLICIES",
    "STEPS",
    "Organisations",
    "Process",
    "Template",
    "freeze_in_step",
    "settings",
    "write_inputs",
]

ROOT = Path(__file__).parents[2]
POLICIES = ROOT / "parties" / "policies"
STEPS = 20
EVERY = 4
MICRO_BATCHES = 2
DEADLINE_S = 60.0

# A fact that has not come by then never will; a busy machine takes its time to import torch.
_PATIENCE_S = 120.0
_LOOK_S = 0.004
_LOOK_FOR_END_S = 0.02

# One way. A step then takes several times as long as to look whether it is under way.
_DELAY_S = 0.01

JOB = """\
[run]
name = "ward"
folder = "clinic/run"
seed = 3
deadline_s = {deadline_s}
[identity]
folder = "clinic-trusted"
[peer]
party = "gpuhost"
{reach}
[model]
path = "{inputs}/model"
task = "sequence-classification"
[data]
train = "{inputs}/train.jsonl"
evaluate = "{inputs}/evaluate.jsonl"
text = "text"
label = "label"
max_length = 16
[cut]
bottom = 1
top = -1
mode = "full"
train_bottom = true
[cut.upper]
method = "sft"
rank = 8
[optimiser]
learning_rate = 1e-3
[schedule]
steps = {steps}
batch_size = 4
micro_batches = {micro_batches}
[checkpoint]
every_steps = {every}
[policy]
file = "{policies}/demo.toml"
"""

COMPUTE = """\
[run]
folder = "{party}/runs"
deadline_s = {deadline_s}
[identity]
folder = "{party}-compute"
[peer]
party = "clinic"
{reach}
[policy]
file = "{policies}/compute.toml"
"""

_GOOD = ("wonderful", "fine", "bright", "moving")
_BAD = ("dull", "long", "loud", "empty")


class Starter(Protocol):
    """Starts `splitlearn ARGUMENTS`; a Template does, or a whole new interpreter."""

    def start(self, *arguments: str, folder: Path, output: Path) -> "Process": ...


@dataclass
class Process:
    """One party at work. output: what it wrote; poll: its exit code, None while it runs."""

    pid: int
    output: Path
    poll: Callable[[], int | None]

    @property
    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, *, timeout_s: float = _PATIENCE_S) -> int:
        """Its exit code."""
        _until(
            lambda: self.poll() is not None,
            what=lambda: self._story("end"),
            every_s=_LOOK_FOR_END_S,
            within_s=timeout_s,
        )
        code = self.poll()
        assert code is not None
        return code

    def wait_for(self, fact: Callable[[], bool], *, what: str) -> None:
        """Wait until `fact` holds; fail if the process ends before."""

        def settled() -> bool:
            assert self.poll() is None, self._story(what)
            return fact()

        _until(settled, what=lambda: self._story(what), every_s=_LOOK_S)

    def port(self) -> int:
        """The port that it says it listens on."""
        told = "listening on port "
        self.wait_for(lambda: told in self.said, what=told)
        return int(self.said.split(told)[1].split()[0])

    def _story(self, what: str) -> str:
        return f"awaited: {what}; exit code {self.poll()}; the process said:\n{self.said}"


class Template:
    """Starts parties as forks of one process that has done the imports. A context manager."""

    def __init__(self, home: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.template"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(home),
        )

    def start(self, *arguments: str, folder: Path, output: Path) -> Process:
        order = {"start": arguments, "folder": str(folder), "output": str(output)}
        output.touch()
        pid = self._ask(order)
        assert pid is not None
        return Process(pid, output, poll=lambda: self._ask({"poll": pid}))

    def __enter__(self) -> "Template":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=_PATIENCE_S)

    def _ask(self, order: Mapping[str, object]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: int | None = json.loads(self._process.stdout.readline())
        return answer


class Interpreter:
    """Starts parties as a user does: each a new interpreter. A context manager."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, folder: Path, output: Path) -> Process:
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "parties.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment(self._home),
            )
        self._processes.append(process)
        return Process(process.pid, output, poll=process.poll)

    def __enter__(self) -> "Interpreter":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with process:
                process.kill()


class Organisations:
    """Both parties' files in one folder, a link between them, and whoever is at work. Close it."""

    def __init__(
        self,
        folder: Path,
        *,
        inputs: Path,
        starter: Starter,
        listens: Literal["compute", "trusted"] = "compute",
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.folder = folder / "both"
        self.run, self.runs = self.folder / "clinic/run", self.folder / "gpuhost/runs"
        self.clinic_log = self.run / "audit"
        self.gpuhost_log = self.runs / "clinic-ward/audit"
        self.link = LinkProxy(("127.0.0.1", 9), delay_s=_DELAY_S)
        self._outputs = folder / "outputs"
        self._starter, self._listens = starter, listens
        self._started: list[Process] = []
        self._outputs.mkdir()
        self.folder.mkdir()
        make_identity(self.folder, "clinic", "trusted")
        make_identity(self.folder, "gpuhost", "compute")
        reach = {
            listens: 'listen = "127.0.0.1:0"',
            "trusted" if listens == "compute" else "compute": f'dial = "{self.link.address}"',
        }
        given = settings(inputs, deadline_s=deadline_s)
        (self.folder / "job.toml").write_text(JOB.format(**given, reach=reach["trusted"]))
        (self.folder / "compute.toml").write_text(
            COMPUTE.format(**given, party="gpuhost", reach=reach["compute"])
        )
        self._before = dict(self._others(inputs))
        self._inputs = inputs

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.kill()
        self.link.close()

    def gpuhost(self) -> Process:
        """Start the compute party."""
        return self._start("compute", "compute", "compute.toml", "--runs", "1")

    def clinic(self) -> Process:
        """Start the trusted party."""
        return self._start("trusted", "trusted", "train", "job.toml")

    def both(self) -> tuple[Process, Process]:
        """Start clinic and gpuhost, the listening one first."""
        if self._listens == "compute":
            gpuhost = self.gpuhost()
            return self.clinic(), gpuhost
        return self.clinic(), self.gpuhost()

    def finish(self, clinic: Process, gpuhost: Process) -> None:
        """Wait until both have ended well."""
        for process in (clinic, gpuhost):
            assert process.wait() == 0, clinic.said + gpuhost.said

    def freeze_in_step(self, process: Process, *, log: Path, step: int) -> None:
        """Stop `process`, whose log is `log`, in the middle of a training step, `step` or later.

        It stands still then, for a test to kill it or to let it go on with SIGCONT.
        """

        freeze_in_step(process, log=log, step=step)

    def assert_ended_like(
        self, other: "Organisations", *, gaps: Mapping[Path, Collection[int]]
    ) -> None:
        """Both parties came to the same numbers, to the bit; their logs verify, with one of so many
        gaps in each, else none; and nothing but their run folders was written to.
        """
        mine, theirs = self.metrics(), other.metrics()
        assert mine["losses"] == theirs["losses"]
        assert mine["scores"] == theirs["scores"]
        for ours, other_s in (
            (self.run, other.run),
            (self.runs / "clinic-ward", other.runs / "clinic-ward"),
        ):
            for name in ("weights.safetensors", "optimiser.safetensors"):
                last = Path("checkpoints") / str(STEPS) / name
                assert (ours / last).read_bytes() == (other_s / last).read_bytes(), ours / last
        for log in (self.clinic_log, self.gpuhost_log):
            done = CliRunner().invoke(cli.app, ["audit", "verify", str(log)])
            assert done.exit_code == 0, done.output
            assert done.output.count("ended by surprise") in gaps.get(log, {0}), done.output
        assert dict(self._others(self._inputs)) == self._before
        for process in self._started:
            assert "Traceback" not in process.said, process.said

    def metrics(self) -> dict[str, object]:
        """What the trusted party's metrics.json says."""
        found: dict[str, object] = json.loads((self.run / "metrics.json").read_text())
        return found

    def _start(self, role: Literal["compute", "trusted"], *arguments: str) -> Process:
        output = self._outputs / f"{len(self._started)}-{role}.txt"
        process = self._starter.start(*arguments, folder=self.folder, output=output)
        self._started.append(process)
        if role == self._listens:
            self.link.retarget(("127.0.0.1", process.port()))
        return process

    def _others(self, inputs: Path) -> Iterator[tuple[Path, str]]:
        """Every file and folder that is no run folder's, with what is in it."""
        for top in (self.folder, inputs.parent):
            for path in sorted(top.rglob("*")):
                if path.is_relative_to(self.run) or path.is_relative_to(self.runs):
                    continue
                if path in {self.run.parent, self.runs.parent}:
                    continue
                yield path, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def settings(inputs: Path, *, deadline_s: float = DEADLINE_S) -> dict[str, object]:
    """What JOB and COMPUTE have places for, but for whom to reach and how."""
    return {
        "deadline_s": deadline_s,
        "policies": POLICIES,
        "inputs": inputs,
        "steps": STEPS,
        "micro_batches": MICRO_BATCHES,
        "every": EVERY,
    }


def freeze_in_step(process: Process, *, log: Path, step: int) -> None:
    """See Organisations."""

    def caught() -> bool:
        return under_way(log) in wanted

    def stopped() -> bool:
        if caught():
            os.kill(process.pid, signal.SIGSTOP)
            if caught():
                return True
            os.kill(process.pid, signal.SIGCONT)
        return False

    # Not the last before a checkpoint: what is on its way can then end a step and not a pause.
    wanted = {at for at in range(step, STEPS) if (at + 1) % EVERY}
    process.wait_for(stopped, what=f"the middle of step {step}")


def under_way(log: Path) -> int | None:
    """The training step that a log's newest conversation is in the middle of, if it is in one."""
    newest: int | None = None
    seen: Counter[str] = Counter()
    for record in records(log):
        if record["type"] == "run.open":
            newest = None
        if record["type"] != "payload" or record["phase"] != "train":
            continue
        step = record["step"]
        assert isinstance(step, int)
        if step != newest:
            newest = step
            seen.clear()
        seen[str(record["kind"])] += 1
    return None if seen["input_gradient"] == MICRO_BATCHES else newest


def records(log: Path) -> Iterator[dict[str, object]]:
    """The whole lines of a log, empty if there is none yet."""
    path = log / "log" / "000000.jsonl"
    if path.exists():
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def environment(home: Path) -> dict[str, str]:
    """One thread, no hub, and a home of its own, so that whatever is put there is seen."""
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "HF_HOME"}
    return kept | {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


def write_inputs(folder: Path) -> None:
    """A BERT of four layers with dropout, its tokenizer, and two classes of one-line reviews."""
    texts = [
        {"text": f"the {noun} was {word} and {also}", "label": label}
        for noun in ("film", "play", "story")
        for label, words in (("good", _GOOD), ("bad", _BAD))
        for word, also in zip(words, words[1:] + words[:1], strict=True)
    ]
    for name, rows in (("train", texts[:18]), ("evaluate", texts[18:])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=100, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((row["text"] for row in texts), trainer)
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]"))
    )
    model = folder / "model"
    BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=32).save_pretrained(model)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(model)


def _until(
    fact: Callable[[], bool],
    *,
    what: Callable[[], str],
    every_s: float,
    within_s: float = _PATIENCE_S,
) -> None:
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, what()
        time.sleep(every_s)

"""Discriminator tokens/s with its generators across an emulated link, against all in one plain loop.

Both runs do the same work on the same cores: MiniLM as the discriminator, two small generators, the
demo's batches. `plain`: one process, one step after the other. `link`: each generator a process of its
own that reaches the discriminator's through the emulator (50 Mbit/s, 40 ms round trip), with TLS, gates,
policies and logs. Interleaved, medians. Writes out/bench/streams.json: tokens_per_s of both and their
ratio (wanted: 0.95 or more). What a token costs on the wire is held by
tests/integration/test_stream_bytes.py. Run as `python -m tests.bench.streams [--repeats 3] [--steps 60]`,
on an idle machine.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from parties import demo_pretrain_data as demo
from parties.discriminating import conduct
from parties.generating import stream_round
from splitlearn.coordination.summon import Reply
from splitlearn.manifest import load_generator, load_pretrain
from splitlearn.pretrain import draw, shares
from splitlearn.roles import Role
from tests.federation import make_identity
from tests.link import LinkProxy

ROOT = Path(__file__).parent.parent.parent
RESULT = ROOT / "out" / "bench" / "streams.json"
PARTIES = {"albion": "en", "iberia": "es"}
MBIT, RTT_MS = 50.0, 40.0
# Steps that are left out: first touches of memory, and the generators' start.
WARM_UP = 10


class Processes:
    """A Summon that starts a process for each generator and round, in Flower's place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def nodes(self) -> dict[int, str]:
        return dict(enumerate(PARTIES))

    def open(self, descriptor: bytes, ttl_s: float) -> None:
        command = [sys.executable, "-m", "tests.bench.streams", "--generate"]
        for party in PARTIES:
            settings = str(self._folder / f"{party}.toml")
            words = [*command, settings, descriptor.decode()]
            self._running.append(subprocess.Popen(words, cwd=ROOT))

    def poll(self) -> list[Reply]:
        return []

    def close(self) -> None:
        for process in self._running:
            process.wait()
        self._running = []


def prepare(folder: Path, *, steps: int, link_port: int, listen_port: int) -> Path:
    """The demo's files for two generators, who reach the hub through the link."""
    ports = demo.Ports()
    ports.listen = listen_port
    plan = demo.Plan(
        languages=PARTIES, write=demo.DEMO.write, steps=steps, deadline_s=demo.DEMO.deadline_s
    )
    demo.prepare(folder, plan=plan, ports=ports)
    names = {"hub": Role.DISCRIMINATOR, **dict.fromkeys(PARTIES, Role.GENERATOR)}
    for party, role in names.items():
        identity = make_identity(folder, party, role)
        shutil.copytree(identity.folder, folder / party / "identity", dirs_exist_ok=True)
    job = folder / "pretrain.toml"
    text = job.read_text()
    for old, new in (
        ("threads = 1", "threads = 2"),
        (f"count = {demo.ROUNDS}", "count = 1"),
        ("held_out = 6", "held_out = 1"),
        ("save_every = 50", "save_every = 100000"),
        (
            f'address = "127.0.0.1:{listen_port}"',
            f'address = "127.0.0.1:{listen_port}"\nadvertise = "127.0.0.1:{link_port}"',
        ),
    ):
        assert old in text, old
        text = text.replace(old, new)
    job.write_text(text)
    return job


def over_link(folder: Path, *, steps: int) -> float:
    """Tokens a second of one run."""
    ports = demo.Ports()
    target = ("127.0.0.1", ports.listen)
    with LinkProxy(target, bits_per_s=MBIT * 1e6, delay_s=RTT_MS / 2_000) as link:
        job = prepare(folder, steps=steps, link_port=link.port, listen_port=ports.listen)
        conduct(job, Processes(folder))
    events = [
        json.loads(line) for line in (folder / "hub/run/events.jsonl").read_text().splitlines()
    ]
    told = [event for event in events if event["event"] == "steps"]
    begin = next(i for i, event in enumerate(told) if event["step"] >= WARM_UP)
    tokens = sum(
        event["tokens_per_s"] * (event["time"] - before["time"])
        for before, event in zip(told[begin:], told[begin + 1 :], strict=False)
    )
    return tokens / (told[-1]["time"] - told[begin]["time"])


def in_one_process(folder: Path, *, steps: int) -> float:
    """Tokens a second of the same work, one step after the other."""
    from parties.training import Shape, discriminator_of, generator_of, vocabulary_of
    from splitlearn.pretrain.ranks import Ranks

    job = load_pretrain(prepare(folder, steps=steps, link_port=1, listen_port=2))
    torch.set_num_threads(job.run.threads)
    vocabulary, batch = vocabulary_of(job), job.batch
    shape = Shape(batch.examples, batch.width, batch.masked, job.run.seed)
    makers = {
        language: generator_of(
            load_generator(folder / f"{party}.toml"),
            vocabulary=vocabulary,
            shape=shape,
            scratch=folder / "scratch",
            ranks=Ranks(),
        )
        for party, language in PARTIES.items()
    }
    judge = discriminator_of(job, vocabulary=vocabulary, ranks=Ranks())
    chances = shares(
        {name: maker.corpus.tokens() for name, maker in makers.items()}, alpha=job.mix.alpha
    )
    tokens, began = 0, 0.0
    for step in range(steps):
        if step == WARM_UP:
            tokens, began = 0, time.monotonic()
        ids, _ = makers[draw(chances, seed=job.run.seed, step=step)].step()
        tokens += judge.train(ids).tokens
    return tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--generate", nargs=2, metavar=("SETTINGS", "DESCRIPTOR"))
    arguments = parser.parse_args()
    if arguments.generate:
        settings, descriptor = arguments.generate
        stream_round(Path(settings), descriptor.encode())
        return
    runs: dict[str, list[float]] = {"plain": [], "link": []}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as place:
            runs["plain"].append(in_one_process(Path(place) / "out", steps=arguments.steps))
        with tempfile.TemporaryDirectory() as place:
            runs["link"].append(over_link(Path(place) / "out", steps=arguments.steps))
        print(json.dumps({name: round(values[-1], 2) for name, values in runs.items()}), flush=True)
    median = {name: statistics.median(values) for name, values in runs.items()}
    result = {
        "tokens_per_s": {"plain": median["plain"], "link": median["link"]},
        "ratio": median["link"] / median["plain"],
        "link": {"mbit": MBIT, "rtt_ms": RTT_MS},
        "runs": runs,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({key: result[key] for key in ("tokens_per_s", "ratio")}))


if __name__ == "__main__":
    main()

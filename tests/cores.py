"""Two parties, a core each: what the benchmarks of step times and memory run.

MiniLM in a U-shape, everything training, over TLS with sessions, policy and log on; random ids of full
length.
"""

import os
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from splitlearn.channel import Channel
from splitlearn.engine.events import Event, StepDone
from splitlearn.roles import Kind
from splitlearn.split import Cut, PcaBasis
from splitlearn.tasks import Batch
from splitlearn.wire.messages import CodecSpec
from tests.rig import Party, trusted_engine, trusted_run
from tests.tiny import real_model_folder

BATCH, TOKENS = 32, 64
CUT = Cut(2, 5)
WAIT_S = 240.0
# Some 20 ms together.
_PACES, _PRODUCTS = 5, 1
# Names in results; the second is what a job has that names no codecs.
CODECS = {
    "uncompressed": CodecSpec("identity", "identity", "identity", "identity"),
    "default": CodecSpec("int8+zstd", "fp16", "fp16", "fp16"),
}


@dataclass
class Laps:
    """Seconds from one finished step to the next, and the steps' losses.

    pacing: whether the machine's pace is looked at after each step, in time that is no step's.
    """

    pacing: bool = False
    began_s: list[tuple[float, float]] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    paces_s: list[float] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepDone):
            self.done(event.loss)

    def done(self, loss: float) -> None:
        """A step ended just now."""
        self.ends_s.append(time.perf_counter())
        self.cpu_s.append(time.process_time())
        self.losses.append(loss)
        if self.pacing:
            self.paces_s.append(pace_s())
        self.began_s.append((time.perf_counter(), time.process_time()))

    @property
    def medians(self) -> dict[str, float]:
        """Wall seconds and the trusted party's processor seconds; the first step is none of them."""
        begun = self.began_s[:-1]
        return {
            "step_s": statistics.median(
                end - began for (began, _), end in zip(begun, self.ends_s[1:], strict=True)
            ),
            "trusted_cpu_s": statistics.median(
                end - began for (_, began), end in zip(begun, self.cpu_s[1:], strict=True)
            ),
        }


def pace_s() -> float:
    """Processor seconds of one product of a layer's size: how fast this core is just now."""
    x_ND, weight_DF = torch.ones(256, 384), torch.ones(384, 1536)
    seconds = []
    for _ in range(_PACES):
        began_s = time.thread_time()
        for _ in range(_PRODUCTS):
            torch.mm(x_ND, weight_DF)
        seconds.append((time.thread_time() - began_s) / _PRODUCTS)
    return statistics.median(seconds)


# Of this program before it pinned itself: what it starts inherits one core only.
CORES = sorted(os.sched_getaffinity(0))


def pin(core: int) -> None:
    """This process to one core, and torch to one thread."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {core})


def batches(pieces: int, step: int) -> list[Batch]:
    """Random ids of full length, in so many micro-batches."""
    generator = torch.Generator().manual_seed(step)
    size = BATCH // pieces
    return [made(size, generator) for _ in range(pieces)]


def made(size: int, generator: torch.Generator) -> Batch:
    return Batch(
        inputs={
            "input_ids": torch.randint(1000, 30000, (size, TOKENS), generator=generator),
            "attention_mask": torch.ones((size, TOKENS), dtype=torch.long),
        },
        labels={"labels": torch.randint(2, (size,), generator=generator)},
        lengths=(TOKENS,) * size,
        items=size,
    )


def load(**changes: object) -> PreTrainedModel:
    """changes: to the model's configuration."""
    model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
        real_model_folder(), attn_implementation="sdpa", **changes
    )
    return model


def measured(
    folder: Path,
    party: Party,
    channel: Channel,
    *,
    codecs: CodecSpec,
    pieces: int,
    number: int,
    model: PreTrainedModel | None = None,
    bases: Mapping[Kind, PcaBasis] | None = None,
    steps: int,
    pacing: bool = False,
) -> Laps:
    """One run over `channel`, of a freshly loaded model where none is given; that is changed.

    pacing: as Laps has it.
    """
    laps = Laps(pacing)
    run = trusted_run(
        model or load(),
        cut=CUT,
        total=steps,
        every=steps,
        deadline_s=WAIT_S,
        run=f"run-{number}",
        codec_bases=bases,
    )
    run = replace(run, offer=msgspec.structs.replace(run.offer, codecs=codecs))
    engine = trusted_engine(
        run, party, channel, observe=laps, checkpoints=folder / f"ours-{number}"
    )
    engine.train(lambda step: batches(pieces, step))
    engine.finish()
    engine.end(None)
    return laps

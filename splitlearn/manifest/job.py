"""job.toml: what the trusted party wants done. Everything that decides a run stands in one file."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from splitlearn.errors import ManifestError
from splitlearn.manifest.chains import links, remembers
from splitlearn.manifest.coding import CodecTable, codec_faults
from splitlearn.manifest.cuts import CutTable, cut_faults
from splitlearn.manifest.fields import (
    ChainTable,
    Fault,
    IdentityTable,
    PeerTable,
    PolicyTable,
    Table,
    peer_faults,
)
from splitlearn.manifest.hops import INNER, MAX_PARTIES, chain_faults
from splitlearn.manifest.reading import read
from splitlearn.manifest.tables import (
    CanaryTable,
    CheckpointTable,
    DataTable,
    ModelTable,
    OptimiserTable,
    PreflightTable,
    PrivacyTable,
    RunTable,
    ScheduleTable,
    Task,
)

__all__ = ["Job", "load_job"]


class Job(Table):
    run: RunTable
    identity: IdentityTable
    peer: PeerTable
    chain: tuple[ChainTable, ...] = Field(
        default=(),
        strict=False,
        max_length=MAX_PARTIES - 1,
        description="a table [[chain]] for each further compute party, in the order of their layers",
    )
    model: ModelTable
    data: DataTable
    cut: CutTable = CutTable()
    codec: CodecTable = CodecTable()
    optimiser: OptimiserTable = OptimiserTable()
    schedule: ScheduleTable
    checkpoint: CheckpointTable = CheckpointTable()
    privacy: PrivacyTable = PrivacyTable()
    canary: CanaryTable = CanaryTable()
    preflight: PreflightTable = PreflightTable()
    policy: PolicyTable

    _file: Path = PrivateAttr(default=Path("job.toml"))

    def model_post_init(self, context: Any, /) -> None:
        self._file = (context or {}).get("file", self._file)

    @property
    def file(self) -> Path:
        """The file this was read from."""
        return self._file

    def fault(self, key: str, why: str) -> ManifestError:
        """The error to raise when `key` turns out to be wrong later, as in `raise job.fault(...)`."""
        return ManifestError(f"{self._file}: {key} {why}")

    def trunk(self, *, layers: int) -> tuple[int, int]:
        """First layer of the trunk and first layer after it, of a model with so many layers."""
        cut = self.cut
        last = cut.top + layers if cut.top < 0 else cut.top
        if not cut.bottom < last <= layers:
            raise self.fault(
                "cut.top",
                f"is {cut.top} and cut.bottom is {cut.bottom}, which leave no layer to the peer in "
                f"a model of {layers} layers; take 1 <= bottom < top <= {layers}",
            )
        return cut.bottom, last

    @property
    def predicts(self) -> bool:
        """Whether the text itself is what the model has to say."""
        return self.model.task == "causal-language-modelling"

    @property
    def writes(self) -> bool:
        """Whether tokens are what the model has to say: its head is then often its embeddings."""
        return self.predicts or self.model.task == "sequence-to-sequence"

    @property
    def keeps_best(self) -> bool:
        """Whether the state with the best score is kept, and is what is taken from the run."""
        asked = self.checkpoint.best
        return self.schedule.patience is not None if asked is None else asked

    @property
    def clips_trunk(self) -> bool:
        """Whether gradients of weights at the peer are clipped with ours."""
        return self.optimiser.clip_norm is not None and self.cut.sends_gradients

    @property
    def peers(self) -> tuple[PeerTable, ...]:
        """The compute parties, in the order of their layers."""
        return (self.peer, *self.chain)

    @property
    def direct(self) -> bool:
        """Whether compute parties of a chain send to one another, and not by way of ours."""
        return any(table.direct for table in self.chain)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first layer of each compute party but the first one, whose layers begin at cut.bottom."""
        return tuple(table.first for table in self.chain)

    def spans(self, *, layers: int) -> tuple[tuple[int, int], ...]:
        """First layer and first layer after it of each compute party, in a model of so many layers."""
        first, last = self.trunk(layers=layers)
        if self.chain and self.starts[-1] >= last:
            raise self.fault(
                "chain.first",
                f"is {self.starts[-1]} for {self.chain[-1].party}, which leaves no layer to it: the "
                f"trunk ends before layer {last}; take {first + 1} to {last - 1}",
            )
        bounds = (first, *self.starts, last)
        return tuple(pairwise(bounds))

    def digest(self) -> str:
        """SHA-256, hex, of the settings that decide the numbers. Two runs of one digest may resume
        one another. No address, path, column, label name or content is in it: the peer gets it.
        """
        privacy = self.privacy.model_dump(exclude={"delta"}, exclude_none=True)
        return _digest(
            {
                "version": 1,
                "seed": self.run.seed,
                "task": self.model.task,
                "attention": self.model.attention,
                "max_length": self.data.max_length,
                **({"join": True} if self.data.join else {}),
                "cut": self._deciding_cut(),
                "codec": self.codec.model_dump(
                    exclude={
                        "public_text",
                        *(() if self.codec.stage else ("stage",)),
                        *(() if self._links else ("cache_mb",)),
                        *(() if self.chain else INNER),
                    }
                ),
                # What came later is left out where it says nothing: older runs keep their digests.
                "optimiser": self.optimiser.model_dump(exclude_none=True),
                "schedule": self._deciding_schedule(),
                **({"chain": self.starts} if self.chain else {}),
                # Relayed, what goes between two parties is coded twice.
                **({"direct": True} if self.direct else {}),
                **({"privacy": privacy} if privacy else {}),
                **({"canary": self.canary.rate} if self.canary.file else {}),
                # Codecs forget at checkpoints.
                **({"every_steps": self.checkpoint.every_steps} if self._remembers else {}),
                **({"best": True} if self.keeps_best else {}),
            }
        )

    def _deciding_cut(self) -> dict[str, object]:
        """Of the cut, what a number depends on: tables of other modes are not in it."""
        text = {"public_text"}
        cut = self.cut.model_dump(exclude={"lower": text, "upper": text, "side": text})
        for mode in ("side", "lora"):
            if cut["mode"] != mode:
                del cut[mode]
        if cut["stack"] == "encoder":
            del cut["stack"]  # as before there was another
        # What is kept was computed in another batch, which its last bits depend on.
        del cut["cache"]
        return {**cut, "cache": True} if self.cut.keeps_outputs else cut

    def _deciding_schedule(self) -> dict[str, object]:
        """Of the schedule, what a number depends on; a run may be resumed with another order."""
        exact = {"order", "in_flight", "overlap", "staleness"}
        if self.schedule.patience is None and not self.keeps_best:
            exact |= {"evaluate_every", "patience"}
        settings = self.schedule.model_dump(exclude=exact)
        if staleness := self.schedule.staleness:
            # A step after a checkpoint's drain uses newer weights than it would without.
            settings |= {"staleness": staleness, "every_steps": self.checkpoint.every_steps}
        return settings

    @property
    def _remembers(self) -> bool:
        return any(map(remembers, self._codecs))

    @property
    def _links(self) -> bool:
        return any(map(links, self._codecs))

    @property
    def _codecs(self) -> tuple[str, ...]:
        return tuple(
            name
            for codec in (self.codec, *self.codec.later)
            for name in (codec.activation, codec.output, codec.gradient, codec.input_gradient)
        )

    def inputs_digest(self) -> str:
        """SHA-256, hex, of the contents that decide the numbers: training data, public texts, label
        names, column names, the model's files. For the trusted party's own eyes: compared before a
        run is resumed, never sent. Hub names count as their text.
        """
        folder = Path(self.model.path)
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        return _digest(
            {
                "version": 1,
                "model": {path.name: _hash(path) for path in files if path.suffix in _MODEL_FILES}
                or self.model.path,
                "labels": self.model.labels,
                "train": _hash(self.data.train.file)
                if self.data.train.file
                else self.data.train.text,
                "canary": _hash(self.canary.file.file)
                if self.canary.file and self.canary.file.file
                else self.canary.file and self.canary.file.text,
                "columns": self.data.model_dump(exclude={"train", "evaluate"}),
                "public": [
                    _hash(cut.public_text) if cut.public_text else None
                    for cut in (
                        self.cut.lower,
                        self.cut.upper,
                        self.codec,
                        *((self.cut.side,) if self.cut.mode == "side" else ()),
                    )
                ],
            }
        )


def load_job(path: Path | str) -> Job:
    """The job in the file; ManifestError for the first unknown, missing, wrong or impossible key."""
    return read(Path(path), model=Job, faults=_impossible)


# Columns of each task: those it needs and those it may have.
_COLUMNS: Mapping[Task, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "sequence-classification": (("text", "label"), ("text_pair",)),
    "token-classification": (("tokens", "tags"), ()),
    "question-answering": (("question", "context", "answer_text", "answer_start"), ()),
    "causal-language-modelling": (("text",), ()),
    "sequence-to-sequence": (("text", "target"), ()),
}
_ALL_COLUMNS = sorted({name for group in _COLUMNS.values() for names in group for name in names})
# What decides a model's numbers lies in files of these kinds.
_MODEL_FILES = {".json", ".safetensors", ".txt", ".model"}
_HASH_BYTES = 2**20


def _impossible(job: Job) -> Iterator[Fault]:
    """Every combination that makes no sense, as the key to blame and what is wrong with it."""
    yield from peer_faults(job.peer)
    yield from chain_faults(job)
    yield from _data_faults(job)
    yield from cut_faults(job)
    yield from codec_faults(job)
    yield from _privacy_faults(job)
    schedule = job.schedule
    if (schedule.epochs is None) == (schedule.steps is None):
        yield Fault("schedule.epochs", "or schedule.steps has to be given, and not both")
    if schedule.micro_batches > schedule.batch_size:
        yield Fault(
            "schedule.micro_batches",
            f"is {schedule.micro_batches}, more than the {schedule.batch_size} examples of a batch; "
            "it takes a whole number from 1 to schedule.batch_size",
        )
    if schedule.patience is not None and schedule.evaluate_every is None:
        yield Fault("schedule.patience", "counts scores; give schedule.evaluate_every too")
    if job.keeps_best and schedule.evaluate_every is None:
        yield Fault("checkpoint.best", "is true and needs scores; give schedule.evaluate_every too")
    if schedule.evaluate_every is not None:
        if job.data.evaluate is None:
            yield Fault(
                "schedule.evaluate_every", "scores data.evaluate, which is missing; name it"
            )
        if schedule.staleness:
            yield Fault(
                "schedule.evaluate_every",
                "has to stop between two steps, which schedule.staleness interleaves; leave one out",
            )
    if job.optimiser.clip_norm is not None and schedule.staleness:
        yield Fault(
            "optimiser.clip_norm",
            "needs a step's whole gradient before the next one begins, and schedule.staleness interleaves "
            "steps; leave one out",
        )
    if schedule.steps is not None and schedule.warmup_steps > schedule.steps:
        yield Fault(
            "schedule.warmup_steps",
            f"is {schedule.warmup_steps}; it takes at most schedule.steps, {schedule.steps}",
        )


def _data_faults(job: Job) -> Iterator[Fault]:
    task = job.model.task
    needed, possible = _COLUMNS[task]
    for column in _ALL_COLUMNS:
        given = getattr(job.data, column) is not None
        if column in needed and not given:
            yield Fault(f"data.{column}", f"is missing; {task} needs {_listed('data', needed)}")
        if given and column not in needed + possible:
            yield Fault(
                f"data.{column}",
                f"has no use in {task}, which has {_listed('data', needed + possible)}",
            )
    if job.data.join and task != "causal-language-modelling":
        yield Fault(
            "data.join", f"is true, and {task} has one text a row; it takes false, or is left out"
        )
    labels = job.model.labels
    if labels is not None and (job.writes or task == "question-answering"):
        yield Fault("model.labels", f"has no use in {task}; leave it out")
    if labels is not None and len(set(labels)) < len(labels):
        yield Fault("model.labels", "names a label twice; it takes different names")


def _privacy_faults(job: Job) -> Iterator[Fault]:
    privacy = job.privacy
    noise, clip = privacy.gradient_noise, privacy.gradient_clip
    if noise is not None and clip is None:
        yield Fault(
            "privacy.gradient_noise",
            f"is {noise:g} without privacy.gradient_clip; without a bound no noise has an epsilon",
        )
    if clip is not None and noise is None:
        yield Fault(
            "privacy.gradient_clip",
            f"is {clip:g} without privacy.gradient_noise; clipping alone hides nothing",
        )
    if noise is not None and not job.cut.sends_gradients:
        yield Fault(
            "privacy.gradient_noise",
            f'has no use in cut.mode "{job.cut.mode}", where no gradient leaves; leave it out',
        )
    if job.writes:
        for key in ("label_epsilon", "gradient_noise"):
            if getattr(privacy, key) is not None:
                yield Fault(
                    f"privacy.{key}",
                    f"is not to be had in {job.model.task}, whose labels are texts: of many tokens "
                    "each, so that an epsilon for one covers little; leave it out",
                )
    if job.model.task == "question-answering":
        for key in ("label_epsilon", "gradient_noise"):
            if getattr(privacy, key) is not None:
                yield Fault(
                    f"privacy.{key}",
                    "is not to be had in question-answering, whose answers are places in the text and "
                    'in several examples each; leave it out: cut.mode = "features" sends nothing '
                    "that an answer decides",
                )


def _listed(table: str, keys: tuple[str, ...]) -> str:
    return ", ".join(f"{table}.{key}" for key in keys)


def _digest(values: Mapping[str, object]) -> str:
    """Of JSON with sorted keys and no spaces; floats are written as their shortest exact decimal."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BYTES):
                digest.update(block)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}); the job needs it") from None
    return digest.hexdigest()

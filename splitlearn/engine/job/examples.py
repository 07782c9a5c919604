"""A job's texts and labels as batches: read, encoded, and, where asked, with labels randomised."""

from dataclasses import dataclass, replace

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from splitlearn.manifest import Job
from splitlearn.policy.accounting import keep_probability
from splitlearn.tasks import (
    Batch,
    Encoded,
    Steps,
    batch,
    encode,
    load_model,
    load_rows,
    randomised,
)
from splitlearn.tasks.batches import joined_width

__all__ = ["Data", "data_of", "protected"]


@dataclass(frozen=True)
class Data:
    """A job's examples: training as steps of micro-batches, held-out ones in order if it names any."""

    tokenizer: PreTrainedTokenizerBase
    train: Encoded
    held_out: Encoded | None
    steps: Steps
    evaluation: tuple[Batch, ...]
    canaries: Encoded | None = None


def data_of(job: Job) -> tuple[Data, PreTrainedModel]:
    """The job's examples and its model, whole, as loaded."""
    rows = load_rows(job, part="train")
    loaded = load_model(job, found=rows.labels)
    tokenizer = loaded.tokenizer
    train = encode(rows, job=job, part="train", tokenizer=tokenizer, labels=loaded.labels)
    pad_id, join = _pad_id(tokenizer), joined_width(job)
    held_out, evaluation = None, list[Batch]()
    if job.data.evaluate is not None:
        rows = load_rows(job, part="evaluate")
        held_out = encode(rows, job=job, part="evaluate", tokenizer=tokenizer, labels=loaded.labels)
        for first in range(0, len(held_out.examples), job.schedule.batch_size):
            examples = held_out.examples[first : first + job.schedule.batch_size]
            evaluation.append(batch(examples, pad_id=pad_id, join=join))
    canaries = None
    if job.canary.file is not None:
        # Read as training data are, from another file.
        source = job.data.model_copy(update={"train": job.canary.file})
        known = load_rows(job.model_copy(update={"data": source}), part="train")
        canaries = encode(known, job=job, part="train", tokenizer=tokenizer, labels=loaded.labels)
    data = Data(
        tokenizer=tokenizer,
        train=train,
        held_out=held_out,
        steps=_steps(job, train, canaries, pad_id=pad_id),
        evaluation=tuple(evaluation),
        canaries=canaries,
    )
    return data, loaded.model


def _steps(job: Job, train: Encoded, canaries: Encoded | None, *, pad_id: int) -> Steps:
    known = () if canaries is None else canaries.examples
    steps = Steps(train.examples, job=job, pad_id=pad_id, canaries=known)
    if known and steps.canary_every > steps.total:
        size, all_sizes = steps.canary_size, steps.total * job.schedule.batch_size
        raise job.fault(
            "canary.rate",
            f"is {job.canary.rate:g}, at which none of the {steps.total} steps has a canary; it takes "
            f"{size / (all_sizes + size):.2g} or more here",
        )
    return steps


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    pad = tokenizer.pad_token_id
    return pad if isinstance(pad, int) else 0


def protected(job: Job, data: Data, *, secret: bytes) -> Data:
    """The same data, training labels randomised if the job asks for it."""
    if job.privacy.label_epsilon is None:
        return data
    keep = keep_probability(job.privacy.label_epsilon, classes=len(data.train.labels))
    train = randomised(data.train, keep=keep, secret=secret)
    canaries = data.canaries
    if canaries is not None:  # else they would leak more than the labels that they stand for
        canaries = randomised(canaries, keep=keep, secret=b"canary" + secret)
    steps = _steps(job, train, canaries, pad_id=_pad_id(data.tokenizer))
    return replace(data, train=train, steps=steps, canaries=canaries)

"""Canaries: what of them lies beside a log, and what a peer could read out of their frames.

    <log>/canary/record.json          their token ids and labels, and which step had which of them
    <log>/canary/bases.safetensors    the public bases of low-rank cuts and codecs, where there are any

Written by the trusted party before a run; read by an auditor, who also needs the public model and the
key of the sealed frames. Never holds anything of an example that is no canary.

Of a chain each compute party's log has its own: the frames are what that very party was sent, and are
attacked with the layers below its own taken from the public model.
"""

# N rows, R columns that travel, D width

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from splitlearn.audit import Blobs, Payload, Redaction, RunOpen, read_records
from splitlearn.codecs import Codec
from splitlearn.engine.job.exposure import (
    MIN_TEXTS,
    Publics,
    encode_lines,
    measure_labels,
    measure_text,
)
from splitlearn.engine.job.prepare import Prepared
from splitlearn.engine.payloads.bases import IN_BASIS, codecs_of
from splitlearn.errors import AuditError, ManifestError
from splitlearn.leakage import Budget, LabelReport, Seen, SeenGradients, TextReport
from splitlearn.roles import Kind
from splitlearn.split import Bottleneck, Cut, PcaBasis, digest, factor, split
from splitlearn.tasks.models import load_public
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import StepTensor

__all__ = ["CANARIES", "CanaryExposure", "CanaryRecord", "attack_canaries", "write_canaries"]

CANARIES = "canary"
_RECORD, _BASES = "record.json", "bases.safetensors"


class CanaryExample(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids with special tokens; label: one class, or none where a label is no single class."""

    ids: tuple[int, ...]
    label: int | None


class CanaryRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """record.json. steps: for each step that has canaries, the numbers of its examples in order."""

    version: Literal[1]
    run: str
    max_length: int
    examples: tuple[CanaryExample, ...]
    steps: dict[int, tuple[int, ...]]


@dataclass(frozen=True)
class CanaryExposure:
    """What the attacks got out of the frames that are kept. Counts are of canary examples."""

    run: str
    activations: int
    gradients: int
    text: TextReport | None
    labels: LabelReport | None


def write_canaries(logs: Sequence[Path], prepared: Prepared, *, max_length: int) -> None:
    """Put down what an auditor needs, closed to other users. Nothing where the job has no canaries.

    logs: one for each compute party, in the order of their layers. Raises AuditError if one cannot be
    written.
    """
    data = prepared.data
    if data.canaries is None:
        return
    steps = {step: data.steps.canaries_of(step) for step in range(data.steps.total)}
    record = CanaryRecord(
        version=1,
        run=prepared.run.offer.run,
        max_length=max_length,
        examples=tuple(
            CanaryExample(example.input_ids, _one_class(example.truth or example.targets))
            for example in data.canaries.examples
        ),
        steps={step: chosen for step, chosen in steps.items() if chosen},
    )
    for log, hop in zip(logs, prepared.run.hops, strict=True):
        narrow = {
            where: basis
            for where, basis in prepared.bases.items()
            if getattr(hop.offer.cut, where).method == "pca"
        }
        _write(log / CANARIES, record, bases={**_tensors_of(narrow), **hop.groups["bases"]})


def attack_canaries(
    log: Path,
    *,
    model: str,
    lines: list[str],
    run_key: bytes | None,
    seed: int,
    budget: Budget,
) -> CanaryExposure:
    """Run the attacks on every canary frame that the log in `log` has kept.

    model: the public base model, a folder or hub name. lines: the attacker's own public texts.
    Raises AuditError for what lies there and is not right, ManifestError for a wrong model or text.
    """
    record = _read_record(log)
    opened, kept = _kept(log, run=record.run, run_key=run_key)
    if opened is None or not kept:
        raise AuditError(
            f"log {log} keeps no frame of a canary; name some in the job's canary.file, train, and "
            "leave the frames unredacted"
        )
    publics = _publics(opened, model=model, log=log, max_length=record.max_length)
    texts = encode_lines(publics, [line for line in lines if line.strip()])
    if len(texts) < MIN_TEXTS:
        raise ManifestError(
            f"there are {len(texts)} public texts for the attacker; it needs {MIN_TEXTS} at least"
        )
    codecs = codecs_of(opened.codecs, _read_codec_bases(log, opened))
    sent = list(_examples_sent(record, kept, codecs=codecs))
    activations = [(rows, index) for kind, rows, index in sent if kind is Kind.ACTIVATION]
    gradients = [(rows, index) for kind, rows, index in sent if kind is Kind.GRADIENT]
    # An example that came round again is the same rows again: once is enough.
    once = {index: rows for rows, index in activations}
    text = labels = None
    if once:
        truth = [record.examples[index].ids for index in once]
        seen = Seen(torch.cat(list(once.values())), tuple(map(len, truth)))
        text = measure_text(publics, seen, truth, texts=texts, seed=seed, budget=budget)
    told = [(rows, record.examples[index].label) for rows, index in gradients]
    known = [(rows, label) for rows, label in told if label is not None]
    if known:
        seen_gradients = SeenGradients(
            torch.cat([rows for rows, _ in known]), tuple(len(rows) for rows, _ in known)
        )
        labels = measure_labels(seen_gradients, [label for _, label in known], seed=seed)
    return CanaryExposure(record.run, len(once), len(gradients), text, labels)


def _write(folder: Path, record: CanaryRecord, *, bases: dict[str, Tensor]) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = folder / f"{_RECORD}.part"
        part.touch(mode=0o600)
        part.write_bytes(msgspec.json.encode(record))
        part.rename(folder / _RECORD)
        if bases:
            save_file(bases, folder / _BASES)
    except (OSError, SafetensorError) as error:
        raise AuditError(f"{folder} cannot be written: {error}; make room there") from error


def _one_class(targets: Mapping[str, int | tuple[int, ...]]) -> int | None:
    label = targets.get("labels")
    return label if isinstance(label, int) else None


def _tensors_of(bases: Mapping[str, PcaBasis]) -> dict[str, Tensor]:
    named = ((where, basis) for where, basis in bases.items())
    return {
        f"{where}.{name}": tensor.contiguous()
        for where, basis in named
        for name, tensor in (("mean", basis.mean), ("components", basis.components))
    }


def _read_record(log: Path) -> CanaryRecord:
    path = log / CANARIES / _RECORD
    try:
        return msgspec.json.decode(path.read_bytes(), type=CanaryRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise AuditError(
            f"{path} cannot be read ({error}); a run with canaries leaves it beside its log"
        ) from None


def _kept(
    log: Path, *, run: str, run_key: bytes | None
) -> tuple[RunOpen | None, list[tuple[Payload, frames.Frame]]]:
    """The run's terms, and every kept frame with its record; redacted ones are passed over."""
    opened: RunOpen | None = None
    records: list[Payload] = []
    gone = set()
    for _, record in read_records(log):
        if isinstance(record, RunOpen) and record.run == run:
            opened = record
        elif isinstance(record, Payload) and record.run == run and record.blob != "withheld":
            records.append(record)
        elif isinstance(record, Redaction):
            gone.add(record.blob)
    left = [record for record in records if record.blob not in gone]
    if not left:
        return opened, []
    blobs = Blobs.open(log, create=False)
    return opened, [
        (record, frames.decode(blobs.read(record.blob, run_key=run_key))) for record in left
    ]


def _examples_sent(
    record: CanaryRecord, kept: list[tuple[Payload, frames.Frame]], *, codecs: Mapping[Kind, Codec]
) -> Iterator[tuple[Kind, Tensor, int]]:
    """Kind, rows and number of each canary example that left. AuditError where they do not fit."""
    for sent, frame in kept:
        meta = frame.meta
        chosen = record.steps.get(meta.step) if isinstance(meta, StepTensor) else None
        if chosen is None:
            raise AuditError(
                f"message {sent.message} was kept and belongs to no step with canaries"
            )
        lengths = tuple(len(record.examples[index].ids) for index in chosen)
        if sent.rows != sum(lengths):
            raise AuditError(
                f"message {sent.message} has {sent.rows} rows where its canaries have "
                f"{sum(lengths)} tokens; frames that carry padding cannot be attacked"
            )
        rows_NR = codecs[frame.kind].decode(
            tensors.decode(frame.payload), rows=sent.rows, width=sent.columns
        )
        for rows, index in zip(torch.split(rows_NR, list(lengths)), chosen, strict=True):
            yield frame.kind, rows, index


def _publics(opened: RunOpen, *, model: str, log: Path, max_length: int) -> Publics:
    """The public model, cut and narrowed as the run's was."""
    whole, tokenizer = load_public(model)
    if whole.config.model_type != opened.model:
        raise ManifestError(
            f"{model} holds a {whole.config.model_type} and the run was of a {opened.model}; give "
            "the public model that the run began from"
        )
    if not opened.cut or not opened.bottlenecks:
        raise ManifestError(f"run {opened.run} cut no model, so there are no activations to attack")
    lower, upper = (_bottleneck(text) for text in opened.bottlenecks)
    cut = Cut(*opened.cut, lower=lower, upper=upper)
    factor(whole, cut=cut, bases=_read_bases(log))
    local, trunk = split(whole, cut=cut)
    return Publics(
        local=local,
        trunk=trunk,
        cut=cut,
        codec=codecs_of(opened.codecs, _read_codec_bases(log, opened))[Kind.ACTIVATION],
        tokenizer=tokenizer,
        max_length=max_length,
    )


def _bottleneck(text: str) -> Bottleneck:
    method, _, rank = text.partition(":")
    if method == "pca":
        return Bottleneck("pca", int(rank))
    return Bottleneck("sft", int(rank)) if method == "sft" else Bottleneck()


def _read_bases(log: Path) -> dict[str, PcaBasis]:
    found = _stored(log)
    return {
        where: PcaBasis(found[f"{where}.mean"], found[f"{where}.components"], kept=1.0)
        for where in ("lower", "upper")
        if {f"{where}.mean", f"{where}.components"} <= found.keys()
    }


def _read_codec_bases(log: Path, opened: RunOpen) -> dict[str, Tensor]:
    """The bases that the run's codecs worked in; AuditError if they are not those that the log names."""
    prefixes = tuple(f"{kind.value}." for kind in IN_BASIS)
    state = {name: t for name, t in _stored(log).items() if name.startswith(prefixes)}
    if opened.codec_bases is not None and digest(state) != opened.codec_bases:
        raise AuditError(
            f"{log / CANARIES / _BASES} has not the bases of codecs that the log names; bring back the "
            "file that the run left"
        )
    return state


def _stored(log: Path) -> dict[str, Tensor]:
    path = log / CANARIES / _BASES
    if not path.exists():
        return {}
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise AuditError(f"{path} cannot be read: {error}") from None

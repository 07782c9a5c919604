"""What a peer could read out of this job: the attacks of the leakage room, aimed at a job's own cut.

Of a chain the text is attacked where the first party stands and labels where the last one does: what
any other party gets is computed from these rows and these gradients, by layers that are public or
that it could be told, so nobody in the chain can be told more than these two together.

The attacker owns the public base model, the public bases of the low-rank cuts and public text, so it
can run the bottom itself; it is given what a peer gets, rows as they come out of the codec, and
nothing else. Knows models and rows; never reads a log, sends, or decides what is too much.
"""

# B batch, T tokens, D width, R columns that travel, N rows

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from splitlearn.codecs import build
from splitlearn.codecs.base import Codec
from splitlearn.engine.job.prepare import Prepared
from splitlearn.engine.payloads.bases import codecs_of
from splitlearn.engine.payloads.crossing import crosses
from splitlearn.engine.trusted.flight import Flight, pause_at_cut
from splitlearn.errors import ManifestError
from splitlearn.leakage import (
    Budget,
    Known,
    LabelReport,
    Seen,
    SeenGradients,
    TextReport,
    Truth,
    attack_labels,
    attack_text,
)
from splitlearn.roles import Kind
from splitlearn.split import (
    GROUPS,
    Cut,
    Trunk,
    build_trunk,
    load_weights,
    mask_of,
    pack,
    remote_stages,
    spec_of,
    trunk_groups,
)
from splitlearn.tasks import Batch, batch
from splitlearn.tasks.encode import Example

__all__ = ["Exposure", "Publics", "measure_labels", "measure_text", "preflight", "publics_of"]

# Texts that go through the model at once.
_AT_ONCE = 32
# Public text is shared out: this part is attacked, the attacker learns from the rest.
_TARGET_SHARE = 0.25
# More tokens than this make the share recovered no more exact and the attacks slow.
TARGET_TOKENS = 2_000
# Fewer texts than this teach an attacker nothing, and a low figure would mean nothing.
MIN_TEXTS = 40


@dataclass(frozen=True)
class Publics:
    """The public parts of a job: what a peer that owns the base model has too.

    local: the model with a remote stage for its trunk. codec: of the activation.
    """

    local: PreTrainedModel
    trunk: Trunk
    cut: Cut
    codec: Codec
    tokenizer: PreTrainedTokenizerBase
    max_length: int


@dataclass(frozen=True)
class Exposure:
    """What the strongest attacks got. labels: None where no gradient leaves or none was attacked."""

    text: TextReport
    labels: LabelReport | None


def publics_of(prepared: Prepared, *, max_length: int) -> Publics:
    """The public parts of a job that has been prepared."""
    offer = prepared.run.offer
    # Of a chain the whole trunk, as if one party hosted it.
    trunk = build_trunk(offer.model, cut=spec_of(prepared.cut))
    state = {
        name: tensor
        for hop in prepared.run.hops
        for group in hop.groups.values()
        for name, tensor in group.items()
    }
    for group in GROUPS:
        names = trunk_groups(trunk)[group]
        load_weights(trunk, {name: state[name] for name in names}, group=group)
    return Publics(
        local=prepared.model,
        trunk=trunk.to(prepared.model.device),
        cut=prepared.cut,
        codec=codecs_of(msgspec.structs.asdict(offer.codecs), prepared.run.groups["bases"])[
            Kind.ACTIVATION
        ],
        tokenizer=prepared.data.tokenizer,
        max_length=max_length,
    )


def measure_text(
    publics: Publics,
    seen: Seen,
    truth: Sequence[Sequence[int]],
    *,
    texts: Sequence[Sequence[int]],
    seed: int,
    budget: Budget,
) -> TextReport:
    """Every attack on text that applies. truth: token ids behind the rows seen; texts: the attacker's."""
    pieces = publics.tokenizer.convert_ids_to_tokens
    return attack_text(
        known_of(publics, texts),
        seen,
        Truth(
            ids=tuple(tuple(ids) for ids in truth),
            slots=tuple(tuple(map(_telling, pieces(list(ids)))) for ids in truth),
        ),
        seed=seed,
        budget=budget,
    )


def measure_labels(seen: SeenGradients, labels: Sequence[int], *, seed: int) -> LabelReport | None:
    """Every attack on labels; None where all examples have one label, so that there is nothing to tell."""
    return attack_labels(seen, labels=labels, seed=seed) if len(set(labels)) > 1 else None


def preflight(
    prepared: Prepared, lines: Sequence[str], *, max_length: int, budget: Budget
) -> Exposure:
    """What a peer would get of `lines`, public texts, if they were this job's private ones.

    Labels are drawn for them, so that nothing private is touched. ManifestError for too few lines.
    """
    if any(crosses(hop.offer) for hop in prepared.run.hops):
        raise ManifestError(
            "cut.stack gives layers of a decoder away, and no attack here knows a decoder's rows yet; they "
            "tell the target as those of an encoder tell the text, which a preflight without it measures"
        )
    prepared.model.to(prepared.run.device.at)  # type: ignore[arg-type]
    publics, offer = publics_of(prepared, max_length=max_length), prepared.run.offer
    lines = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(lines) < MIN_TEXTS:
        raise ManifestError(
            f"there are {len(lines)} different public texts; attacks that mean anything need "
            f"{MIN_TEXTS} at least, and some hundred are better: name a larger preflight.public_text"
        )
    random.Random(offer.seed).shuffle(lines)  # noqa: S311 - no secret
    texts = encode_lines(publics, lines)
    count, tokens = 0, 0
    while count < _TARGET_SHARE * len(texts) and tokens < TARGET_TOKENS:
        tokens += len(texts[count])
        count += 1
    target, own = texts[:count], texts[count:]
    labels = None
    if offer.trains_trunk and prepared.data.train.labels and "labels" in _targets(prepared):
        labels = _label_report(publics, prepared, target)
    rows_NR = rows_of(publics, target)
    seen = Seen(rows_NR, tuple(map(len, target)))
    text = measure_text(publics, seen, target, texts=own, seed=offer.seed, budget=budget)
    return Exposure(text=text, labels=labels)


def encode_lines(publics: Publics, lines: Sequence[str]) -> list[tuple[int, ...]]:
    """Token ids of each text, special tokens included."""
    encoded = publics.tokenizer(list(lines), truncation=True, max_length=publics.max_length)
    return [tuple(ids) for ids in encoded["input_ids"]]


def rows_of(publics: Publics, texts: Sequence[Sequence[int]]) -> Tensor:
    """The rows (N, R) that a peer decodes when it is sent these texts, one after the other."""
    rows = []
    for first in range(0, len(texts), _AT_ONCE):
        group = texts[first : first + _AT_ONCE]
        width = max(map(len, group))
        ids_BT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in group])
        rows.append(_forward(publics, ids_BT, tuple(map(len, group))))
    return torch.cat(rows)


def known_of(publics: Publics, texts: Sequence[Sequence[int]]) -> Known:
    """The attacker's knowledge."""
    receive = publics.trunk.receive
    special = set(publics.tokenizer.all_special_ids)

    def expand(rows_NR: Tensor) -> Tensor:
        if receive is None:
            return rows_NR
        with torch.no_grad():
            widened: Tensor = receive(rows_NR[None].to(publics.local.device))[0]
        return widened.cpu()

    embeddings = publics.local.get_input_embeddings()
    assert isinstance(embeddings, torch.nn.Embedding), "the families we know have a table of words"
    return Known(
        forward=lambda ids_BT, lengths: _forward(publics, ids_BT, lengths),
        embeddings_VD=_at_full_width(publics.local, embeddings.weight.detach()),
        expand=expand,
        text=tuple(tuple(ids) for ids in texts),
        special=frozenset(special),
    )


def _forward(publics: Publics, ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Bottom, narrow cut, codec and back, in evaluation mode and without a graph."""
    local = publics.local
    training = local.training
    _stand_still(local)
    mask_BT = mask_of(lengths, width=ids_BT.shape[1]).long()
    with torch.no_grad():
        inputs = {"input_ids": ids_BT * mask_BT, "attention_mask": mask_BT}
        flight = Flight(local, inputs=_moved(inputs, local))
        rows_NR = pack(flight.to_cut(), lengths=lengths)
    flight.abandon()
    local.train(training)
    return _through(publics.codec, rows_NR)


def _stand_still(local: PreTrainedModel) -> None:
    """Connect the remote stages to the flight that owns them, and leave dropout out."""
    for stage in remote_stages(local):
        stage.exchange = pause_at_cut
    local.train(mode=False)


def _through(codec: Codec, rows_NR: Tensor) -> Tensor:
    rows, width = rows_NR.shape
    return codec.decode(codec.encode(rows_NR.contiguous()), rows=rows, width=width)


def _label_report(
    publics: Publics, prepared: Prepared, texts: Sequence[Sequence[int]]
) -> LabelReport | None:
    """Gradients of these texts with labels drawn for them, as they would leave, attacked."""
    classes = len(prepared.data.train.labels)
    draw = random.Random(prepared.run.offer.seed)  # noqa: S311 - no secret
    labels = [i % classes for i in range(len(texts))]
    draw.shuffle(labels)
    codec = build(prepared.run.hops[-1].offer.codecs.gradient)
    gradients = []
    for first in range(0, len(texts), _AT_ONCE):
        chosen = slice(first, first + _AT_ONCE)
        made = _labelled(prepared, texts[chosen], labels[chosen])
        g_ND = _gradient(publics, prepared, made)
        # A step of fewer examples has a larger share of each in its mean.
        gradients.append(_through(codec, g_ND) * made.items)
    seen = SeenGradients(torch.cat(gradients), tuple(map(len, texts)))
    return measure_labels(seen, labels, seed=prepared.run.offer.seed)


def _gradient(publics: Publics, prepared: Prepared, made: Batch) -> Tensor:
    """Loss by trunk's output, (N, D), as a training step would send it."""
    local, run = publics.local, prepared.run
    training = local.training
    _stand_still(local)
    flight = Flight(local, inputs=_moved({**made.inputs, **made.labels}, local))
    with torch.no_grad():
        h_BTD = publics.trunk.train(mode=False)(flight.to_cut(), lengths=made.lengths)
    h_BTD.requires_grad_(True)
    for _ in run.further:  # nothing of ours lies between two parties
        flight.past_cut(h_BTD)
    output = flight.from_cut(h_BTD)
    if run.noise is None:
        output["loss"].backward()
    else:
        run.noise.backward(
            output["loss"], logits=output["logits"], labels=made.labels["labels"], items=made.items
        )
    assert h_BTD.grad is not None
    local.zero_grad(set_to_none=True)
    local.train(training)
    return pack(h_BTD.grad, lengths=made.lengths)


def _labelled(prepared: Prepared, texts: Sequence[Sequence[int]], labels: Sequence[int]) -> Batch:
    pairs = prepared.data.train.examples[0].token_type_ids is not None
    examples = [
        Example(
            input_ids=tuple(ids),
            token_type_ids=(0,) * len(ids) if pairs else None,
            targets={"labels": label},
            items=1,
            row=0,
        )
        for ids, label in zip(texts, labels, strict=True)
    ]
    return batch(examples, pad_id=0)


def _targets(prepared: Prepared) -> tuple[str, ...]:
    """Names of the targets that are one class an example."""
    targets = prepared.data.train.examples[0].targets
    return tuple(name for name, target in targets.items() if isinstance(target, int))


def _at_full_width(local: PreTrainedModel, table_VE: Tensor) -> Tensor:
    """Word embeddings as wide as the hidden state, where a model keeps narrower ones (ELECTRA)."""
    project = getattr(local.base_model, "embeddings_project", None)
    if project is None:
        return table_VE.cpu()
    with torch.no_grad():
        widened: Tensor = project(table_VE)
    return widened.cpu()


def _moved(inputs: Mapping[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """To where the model is. What an attacker works with is on the CPU."""
    return {name: tensor.to(model.device) for name, tensor in inputs.items()}


def _telling(token: str) -> bool:
    """Pieces of numbers and addresses: what is looked for first in a leaked text."""
    return any(letter.isdigit() or letter == "@" for letter in token)

"""Payloads that a patched or broken stage might try: each is refused and nothing of it is on the tap.

The tap holds what the gate released, which is all that a channel can send.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from splitlearn.audit import Denied, Exit, verify
from splitlearn.codecs import Identity, Slot, build, to_part
from splitlearn.errors import RefusedError, SessionError, SplitLearnError, WireError
from splitlearn.policy import load
from splitlearn.roles import Kind
from splitlearn.wire.messages import Finish, Shard, Step, StepTensor
from splitlearn.wire.tensors import Part
from tests.door import POLICIES, WIDTH, Door, Rows, rows

LENGTHS = (9, 4, 6, 9, 8, 7, 5, 9, 3, 8, 9, 6, 4, 7, 9, 5, 8, 6)


@dataclass
class Attempt:
    """What is handed to the gate, and the rules of which one has to stop it."""

    rules: set[str]
    kind: Kind = Kind.ACTIVATION
    meta: object = None
    more: dict[str, object] = field(default_factory=dict)


Attack: TypeAlias = Callable[[Rows], Attempt]


def honest() -> Rows:
    return rows(lengths=LENGTHS)


def sending(batch: Rows, x_ND: Tensor, *rules: str, codec: object = None) -> Attempt:
    """The batch with another tensor or codec than its own."""
    more = {"tensor": x_ND, "codec": codec or build("identity"), "private": batch.private}
    return Attempt(set(rules), meta=batch.meta, more=more)


def beside(batch: Rows, *rules: str, **changes: object) -> Attempt:
    """The batch with other metadata than its own."""
    attempt = sending(batch, batch.x_ND, *rules)
    attempt.meta = msgspec.structs.replace(batch.meta, **changes)
    return attempt


def spread(values_B: np.ndarray) -> Tensor:
    """One value for each example, on all of its tokens and columns."""
    return (
        torch.from_numpy(np.repeat(values_B, LENGTHS).astype(np.float32))
        .unsqueeze(1)
        .repeat(1, WIDTH)
    )


def tokens(batch: Rows) -> Tensor:
    ids = [row[:n] for row, n in zip(batch.private.ids, LENGTHS, strict=True)]
    return torch.from_numpy(np.concatenate(ids).astype(np.float32))


def labels_as_floats(batch: Rows) -> Attempt:
    return sending(batch, spread(batch.private.labels[0]), "content.whole", "content.labels")


def labels_in_one_column(batch: Rows) -> Attempt:
    x_ND = batch.x_ND.clone()
    x_ND[:, 3] = spread(batch.private.labels[0])[:, 0]
    return sending(batch, x_ND, "content.whole", "content.labels")


def labels_in_one_column_scaled(batch: Rows) -> Attempt:
    x_ND = batch.x_ND.clone()
    x_ND[:, 3] = spread(batch.private.labels[0])[:, 0] * 0.31 - 0.17
    return sending(batch, x_ND, "content.distinct")


def ids_as_floats(batch: Rows) -> Attempt:
    return sending(batch, tokens(batch).unsqueeze(1).repeat(1, WIDTH), "content.whole")


def ids_in_one_column_scaled(batch: Rows) -> Attempt:
    x_ND = batch.x_ND.clone()
    x_ND[:, 3] = tokens(batch) / 30_000
    return sending(batch, x_ND, "content.ids")


def ids_as_integers(batch: Rows) -> Attempt:
    return sending(batch, tokens(batch).long().unsqueeze(1), "content.floats")


def ids_behind_a_codec(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        """Takes the hidden state and writes the ids."""

        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            return (to_part("x", tokens(batch).unsqueeze(1).repeat(1, WIDTH) / 30_000),)

    return sending(batch, batch.x_ND, "content.ids", codec=Smuggler())


def labels_behind_a_codec(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            return (to_part("x", spread(batch.private.labels[0])),)

    return sending(batch, batch.x_ND, "content.whole", "content.labels", codec=Smuggler())


def ids_in_an_extra_part(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            return (*super().encode(x_ND), to_part("ids", tokens(batch)))

    return sending(batch, batch.x_ND, "content.layout", codec=Smuggler())


def ids_in_a_part_of_integers(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            return (to_part("x", tokens(batch).long()),)

    return sending(batch, batch.x_ND, "activation.dtypes", codec=Smuggler())


def ids_in_doubles(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        """The right values, each with room for another beside it."""

        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            return (to_part("x", x_ND.double() + tokens(batch).double().unsqueeze(1) * 1e-12),)

    return sending(batch, batch.x_ND, "activation.dtypes", codec=Smuggler())


def ids_in_the_metadata_of_a_container(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            ids = tokens(batch).to(torch.uint8)
            return (*super().encode(x_ND), to_part("__metadata__", ids))

    return sending(batch, batch.x_ND, "WireError", codec=Smuggler())


def ids_in_the_name_of_a_part(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        def encode(self, x_ND: Tensor) -> tuple[Part, ...]:
            (part,) = super().encode(x_ND)
            return (dataclasses.replace(part, name="x.17.23.42"),)

    return sending(batch, batch.x_ND, "content.layout", codec=Smuggler())


def a_codec_that_declares_what_it_should_not(batch: Rows) -> Attempt:
    class Smuggler(Identity):
        name = "raw"

        def layout(self, *, rows: int, width: int) -> tuple[Slot, ...]:
            return (*super().layout(rows=rows, width=width), Slot("ids", "I64", (rows,)))

    return sending(batch, batch.x_ND, "activation.codecs", codec=Smuggler())


def one_row_more(batch: Rows) -> Attempt:
    return sending(batch, torch.cat([batch.x_ND, batch.x_ND[:1]]), "content.rows")


def ids_in_the_lengths(batch: Rows) -> Attempt:
    ids = tuple(int(token) for token in batch.private.ids[:, 0])
    return beside(batch, "activation.max_length", "content.lengths", lengths=ids)


def one_past_the_vocabulary_in_the_lengths(batch: Rows) -> Attempt:
    lengths = (30_000, *LENGTHS[1:])
    return beside(batch, "activation.max_length", "content.lengths", lengths=lengths)


def a_negative_id_in_the_lengths(batch: Rows) -> Attempt:
    return beside(batch, "WireError", "content.lengths", lengths=(-1, *LENGTHS[1:]))


def labels_in_the_lengths(batch: Rows) -> Attempt:
    labels = tuple(int(label) + 1 for label in batch.private.labels[0])
    return beside(batch, "content.lengths", lengths=labels)


def no_lengths(batch: Rows) -> Attempt:
    return beside(batch, "content.lengths", lengths=())


def an_id_in_the_width(batch: Rows) -> Attempt:
    return beside(batch, "content.batch", width=int(batch.private.ids[0, 0]))


def an_id_in_the_step(batch: Rows) -> Attempt:
    return beside(batch, "SessionError", step=int(batch.private.ids[0, 0]))


def text_in_the_phase(batch: Rows) -> Attempt:
    return beside(batch, "WireError", phase="the patient has")


def a_field_too_large(batch: Rows) -> Attempt:
    return beside(batch, "WireError", reply_to=2**60)


def bits_in_a_nan(batch: Rows) -> Attempt:
    x_ND = batch.x_ND.clone()
    x_ND.view(torch.int32)[2, 2] = 0x7FC0_0000 | int(batch.private.ids[0, 0])
    return sending(batch, x_ND, "content.finite")


def infinity(batch: Rows) -> Attempt:
    x_ND = batch.x_ND.clone()
    x_ND[2, 2] = float("-inf")
    return sending(batch, x_ND, "content.finite")


def rank_above_the_policys(batch: Rows) -> Attempt:
    return sending(batch, torch.randn(len(batch.x_ND), 385), "activation.max_columns")


def three_dimensions(batch: Rows) -> Attempt:
    return sending(batch, batch.x_ND.unsqueeze(0), "content.floats")


def a_codec_that_no_rule_names(batch: Rows) -> Attempt:
    return sending(batch, batch.x_ND, "activation.codecs", codec=build("bf16+zstd"))


def too_many_examples(batch: Rows) -> Attempt:
    big = rows(lengths=(1,) * 257, width=1)
    return sending(big, big.x_ND, "activation.max_examples")


def a_text_that_is_too_long(batch: Rows) -> Attempt:
    long = rows(lengths=(513,), width=513)
    return sending(long, long.x_ND, "activation.max_length")


def too_many_bytes(batch: Rows) -> Attempt:
    large = rows(lengths=(500,) * 50, width=500)
    large.x_ND = torch.randn(25_000, 384, generator=torch.Generator().manual_seed(0))
    return sending(large, large.x_ND, "activation.max_message_bytes")


def no_batch_to_compare_with(batch: Rows) -> Attempt:
    attempt = sending(batch, batch.x_ND, "content.batch")
    attempt.more["private"] = None
    return attempt


def another_batch_to_compare_with(batch: Rows) -> Attempt:
    attempt = sending(batch, batch.x_ND, "content.lengths", "content.batch")
    attempt.more["private"] = rows(lengths=(9, 4)).private
    return attempt


def rows_as_parts(batch: Rows) -> Attempt:
    parts = (to_part("x", batch.x_ND),)
    return Attempt({"content.arguments"}, meta=batch.meta, more={"parts": parts})


def rows_beside_a_word(batch: Rows) -> Attempt:
    more = {"tensor": batch.x_ND, "codec": build("identity"), "private": batch.private}
    return Attempt({"content.arguments"}, kind=Kind.FINISH, meta=Finish(False), more=more)


def ids_as_weights(batch: Rows) -> Attempt:
    parts = (to_part("layers.1.weight", tokens(batch).long()),)
    return Attempt(
        {"trunk-weights.dtypes"}, kind=Kind.WEIGHTS, meta=Shard(0, 1), more={"parts": parts}
    )


def weights_in_the_middle_of_a_run(batch: Rows) -> Attempt:
    parts = (to_part("layers.1.weight", tokens(batch)),)
    return Attempt({"SessionError"}, kind=Kind.WEIGHTS, meta=Shard(0, 1), more={"parts": parts})


def an_answer_that_is_not_ours_to_give(batch: Rows) -> Attempt:
    more = {"tensor": batch.x_ND, "codec": build("identity"), "private": batch.private}
    return Attempt({"no-rule"}, kind=Kind.OUTPUT, meta=batch.meta, more=more)


def another_kinds_metadata(batch: Rows) -> Attempt:
    return Attempt({"WireError", "SessionError"}, kind=Kind.FINISH, meta=Step(0))


ATTACKS: Sequence[Attack] = (
    labels_as_floats,
    labels_in_one_column,
    labels_in_one_column_scaled,
    ids_as_floats,
    ids_in_one_column_scaled,
    ids_as_integers,
    ids_behind_a_codec,
    labels_behind_a_codec,
    ids_in_an_extra_part,
    ids_in_a_part_of_integers,
    ids_in_doubles,
    ids_in_the_metadata_of_a_container,
    ids_in_the_name_of_a_part,
    a_codec_that_declares_what_it_should_not,
    one_row_more,
    ids_in_the_lengths,
    one_past_the_vocabulary_in_the_lengths,
    a_negative_id_in_the_lengths,
    labels_in_the_lengths,
    no_lengths,
    an_id_in_the_width,
    an_id_in_the_step,
    text_in_the_phase,
    a_field_too_large,
    bits_in_a_nan,
    infinity,
    rank_above_the_policys,
    three_dimensions,
    a_codec_that_no_rule_names,
    too_many_examples,
    a_text_that_is_too_long,
    too_many_bytes,
    no_batch_to_compare_with,
    another_batch_to_compare_with,
    rows_as_parts,
    rows_beside_a_word,
    ids_as_weights,
    weights_in_the_middle_of_a_run,
    an_answer_that_is_not_ours_to_give,
    another_kinds_metadata,
)


def rule_of(error: SplitLearnError) -> str:
    return error.rule if isinstance(error, RefusedError) else type(error).__name__


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_red_payload_is_refused_logged_and_not_on_the_tap(tmp_path: Path, attack: Attack) -> None:
    door = Door(tmp_path)
    attempt = attack(honest())
    error = door.refuses(attempt.kind, attempt.meta, **attempt.more)
    assert isinstance(error, RefusedError | SessionError | WireError)
    assert rule_of(error) in attempt.rules
    denied = [record for record in door.records if isinstance(record, Denied)]
    assert [record.rule for record in denied] == [rule_of(error)]
    # And nothing after it either, not even what is honest.
    after = door.refuses(Kind.FINISH, Finish(False))
    assert rule_of(after) == "gate-shut"
    assert [released.kind for released in door.tap] == [Kind.OFFER, Kind.RESUME]
    door.gate.close(outcome="refused")
    door.log.close()
    assert verify(tmp_path, verifier_key=door.log.verifier_key).exit is Exit.POLICY


def test_the_honest_batch_that_the_attacks_begin_with_passes(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(honest())
    assert door.tap[-1].kind is Kind.ACTIVATION


def test_a_gradient_does_not_leave_where_no_rule_names_it(tmp_path: Path) -> None:
    door, batch = Door(tmp_path, policy=load(POLICIES / "strict.toml")), honest()
    door.send(batch)
    error = door.refuses(
        Kind.GRADIENT,
        StepTensor(0, 0, 4, "train", 9, True, (), 0),
        tensor=batch.x_ND,
        codec=build("identity"),
        private=batch.private,
    )
    assert rule_of(error) == "no-rule"
    assert [released.kind for released in door.tap][-1] is Kind.ACTIVATION


def test_ids_do_not_leave_as_a_gradient(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), honest()
    door.send(batch)
    for scale in (1.0, 1e-6):
        fresh = Door(tmp_path / str(scale))
        fresh.send(batch)
        error = fresh.refuses(
            Kind.GRADIENT,
            StepTensor(0, 0, 4, "train", 9, True, (), 0),
            tensor=tokens(batch).unsqueeze(1).repeat(1, 8) * scale,
            codec=build("identity"),
            private=batch.private,
        )
        assert rule_of(error) in {"content.whole", "content.ids"}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_refusal_tells_the_log_or_the_user_what_was_refused(
    tmp_path: Path, attack: Attack
) -> None:
    door, batch = Door(tmp_path), honest()
    attempt = attack(batch)
    error = door.refuses(attempt.kind, attempt.meta, **attempt.more)
    if attack in {ids_in_the_lengths, an_id_in_the_width, an_id_in_the_step}:
        return  # one number that is over a limit stands in the sentence that says so
    secrets = {str(token) for token in batch.private.ids.reshape(-1) if token > 1_000}
    said = str(error) + everything_in(tmp_path / "log").decode()
    # Whole words: five digits in the middle of a digest are no id.
    assert not secrets & set(re.findall(r"[A-Za-z0-9.+/=]+", said))


def test_what_is_written_on_the_wire_for_the_demo_is_the_layout_and_nothing_else(
    tmp_path: Path,
) -> None:
    """An honest message has no room between, before or after its tensors."""
    released = Door(tmp_path).send(honest(), codec=build("identity"))
    size = len(honest().x_ND) * WIDTH * 4
    assert len(released.raw) - size < 300
    assert honest().x_ND.numpy().tobytes() == released.raw[-size:]

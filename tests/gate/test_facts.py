"""What is known of a message, before a tensor is looked at and after it is written."""

import numpy as np

from splitlearn.gate.facts import facts_of, with_bytes
from splitlearn.manifest.chains import SAMPLES
from splitlearn.policy import Facts, Private
from splitlearn.roles import Kind, Role
from splitlearn.wire.messages import Ids, Memory, Step, StepTensor
from splitlearn.wire.tensors import Part


def step(**changes: object) -> StepTensor:
    given: dict[str, object] = {"phase": "train", "width": 9, "lengths": (9, 4)}
    given |= changes
    return StepTensor(
        step=0,
        micro_batch=0,
        micro_batches=1,
        packed=True,
        reply_to=0,
        **given,  # type: ignore[arg-type]
    )


def facts(kind: Kind, meta: StepTensor | Step | Ids, private: Private | None = None) -> Facts:
    return facts_of(kind, "out", meta, peer=Role.COMPUTE, vocabulary=30_522, private=private)


def test_examples_and_the_longest_are_the_most_that_travels_or_is_private() -> None:
    found = facts(Kind.ACTIVATION, step())
    assert (found.examples, found.longest, found.generated) == (2, 9, False)
    ids = np.zeros((3, 12), dtype=np.int64)
    private = Private(ids=ids, labels=(), lengths=(12, 3, 1))
    assert (facts(Kind.GRADIENT, step(lengths=()), private).longest) == 12
    assert (facts(Kind.GRADIENT, step(lengths=()), private).examples) == 3


def test_texts_of_a_memory_count_among_the_longest() -> None:
    found = facts(Kind.ACTIVATION, step(memory=Memory(20, (20, 1))))
    assert (found.examples, found.longest) == (2, 20)


def test_only_an_activation_of_a_text_gone_on_with_is_generated() -> None:
    assert facts(Kind.ACTIVATION, step(phase="generate")).generated
    assert not facts(Kind.OUTPUT, step(phase="generate")).generated


def test_ids_are_rows_of_one_column_written_for_their_vocabulary() -> None:
    found = facts(Kind.IDS, Ids(index=0, phase="train", lengths=(5, 2)))
    assert (found.codec, found.rows, found.columns) == ("ids-15", 7, 1)


def test_a_message_without_texts_has_none() -> None:
    found = facts(Kind.CHECKPOINT, Step(3))
    assert (found.examples, found.longest) == (0, 0)


def test_what_is_written_says_its_types_and_whether_rows_are_linked() -> None:
    rows = Part("x", "U8", (2,), b"ab")
    names = Part(SAMPLES, "U8", (1,), b"c")
    found = with_bytes(facts(Kind.ACTIVATION, step()), parts=(rows, names), wire_bytes=77)
    assert (found.dtypes, found.wire_bytes, found.linked) == (frozenset({"U8"}), 77, True)
    assert not with_bytes(found, parts=(rows,), wire_bytes=77).linked
    assert not with_bytes(facts(Kind.WEIGHTS, Step(0)), parts=(names,), wire_bytes=1).linked

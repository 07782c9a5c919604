from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.errors import WireError
from splitlearn.wire.ids import IdBatch, bits_of, codec_name, pack, unpack

VOCABULARY = 30_522


def batch(lengths: tuple[int, ...], *, vocabulary: int = VOCABULARY, seed: int = 0) -> IdBatch:
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    return IdBatch(
        rng.integers(0, vocabulary, count).astype(np.int32), rng.random(count) < 0.1, lengths
    )


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.integers(2, 2**20),
    st.integers(0, 99),
)
def test_a_batch_comes_back_as_it_was(lengths: list[int], vocabulary: int, seed: int) -> None:
    sent = batch(tuple(lengths), vocabulary=vocabulary, seed=seed)
    got = unpack(pack(sent, vocabulary=vocabulary), lengths=sent.lengths, vocabulary=vocabulary)
    assert (got.ids == sent.ids).all()
    assert (got.replaced == sent.replaced).all()
    assert (got.ids.dtype, got.replaced.dtype, got.lengths) == (np.int32, np.bool_, sent.lengths)


@pytest.mark.parametrize(
    ("vocabulary", "bits"), [(2, 1), (256, 8), (257, 9), (30_522, 15), (250_037, 18)]
)
def test_an_id_takes_as_many_bits_as_the_vocabulary_needs(vocabulary: int, bits: int) -> None:
    assert bits_of(vocabulary) == bits
    assert codec_name(vocabulary) == f"ids-{bits}"
    ids, flags = pack(batch((64,), vocabulary=vocabulary), vocabulary=vocabulary)
    assert (ids.shape, flags.shape) == ((8 * bits,), (8,))


@pytest.mark.parametrize("bad", [-1, VOCABULARY + 5, 2**31 - 1])
def test_an_id_outside_the_vocabulary_does_not_leave_and_is_not_told(bad: int) -> None:
    sent = batch((5,))
    sent.ids[3] = bad
    with pytest.raises(WireError, match=r"outside \[0, 30522\)") as caught:
        pack(sent, vocabulary=VOCABULARY)
    assert str(bad) not in str(caught.value)


def test_an_id_outside_the_vocabulary_is_refused_where_it_arrives() -> None:
    sent = batch((5,))
    sent.ids[0] = 2**15 - 1  # fits the bits, not the vocabulary
    parts = pack(sent, vocabulary=2**15)
    with pytest.raises(WireError, match="another vocabulary"):
        unpack(parts, lengths=(5,), vocabulary=VOCABULARY)


@pytest.mark.parametrize("what", ["shape", "dtype", "name", "missing", "extra", "order"])
def test_parts_of_another_form_are_refused(what: str) -> None:
    ids, flags = pack(batch((5, 6)), vocabulary=VOCABULARY)
    wrong = {
        "shape": (replace(ids, shape=(len(ids.data) - 1,), data=ids.data[:-1]), flags),
        "dtype": (replace(ids, dtype="I8"), flags),
        "name": (replace(ids, name="text"), flags),
        "missing": (ids,),
        "extra": (ids, flags, replace(flags, name="more")),
        "order": (flags, ids),
    }[what]
    with pytest.raises(WireError, match="encoder is at fault"):
        unpack(wrong, lengths=(5, 6), vocabulary=VOCABULARY)


@pytest.mark.parametrize("part", [0, 1])
def test_nothing_hides_in_the_bits_beyond_the_last_token(part: int) -> None:
    parts = list(pack(batch((5,)), vocabulary=VOCABULARY))
    data = bytearray(parts[part].data)
    data[-1] |= 1
    parts[part] = replace(parts[part], data=bytes(data))
    with pytest.raises(WireError, match="beyond its last token"):
        unpack(tuple(parts), lengths=(5,), vocabulary=VOCABULARY)


@pytest.mark.parametrize("lengths", [(), (0,), (5, 0), (4,), (6,)])
def test_lengths_that_are_not_those_of_the_ids_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(WireError):
        pack(replace(batch((5,)), lengths=lengths), vocabulary=VOCABULARY)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_floats_in_the_place_of_ids_do_not_leave(dtype: type) -> None:
    sent = batch((5,))
    with pytest.raises(WireError, match="expected int32"):
        pack(replace(sent, ids=sent.ids.astype(dtype)), vocabulary=VOCABULARY)


@pytest.mark.parametrize("vocabulary", [0, 1, 2**20 + 1])
def test_a_vocabulary_of_no_sense_is_refused(vocabulary: int) -> None:
    with pytest.raises(WireError, match="expected 2 to"):
        bits_of(vocabulary)

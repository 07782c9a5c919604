import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.pretrain.padding import pad


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_tokens_stand_where_they_belong_and_nothing_else(lengths: list[int]) -> None:
    ids = np.arange(1, sum(lengths) + 1, dtype=np.int32)
    padded = pad(ids, lengths=lengths, fill=0, device="cpu")
    width = padded.ids_BT.shape[1]
    assert width % 8 == 0
    assert width - 8 < max(lengths) <= width
    assert padded.ids_BT[padded.real_BT].tolist() == ids.tolist()
    assert padded.real_BT.sum(1).tolist() == lengths
    assert (padded.ids_BT != 0).equal(padded.real_BT)
    assert padded.attention.tolist() == padded.real_BT.int().tolist()

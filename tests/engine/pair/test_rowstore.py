from pathlib import Path

import torch

from splitlearn.engine.pair.rowstore import RowStore
from splitlearn.translation import Source


def test_what_is_kept_comes_back_in_any_batch_to_the_bit(tmp_path: Path) -> None:
    store = RowStore(tmp_path, width=4, limit_bytes=2**16)
    rows_BSD = torch.randn(3, 5, 4)
    assert store.keep("train", (7, 2, 9), Source(rows_BSD, (5, 3, 4)))
    found = store.source("train", (9, 7))
    assert found.lengths == (4, 5)
    assert torch.equal(found.rows_BSD[0, :4], rows_BSD[2, :4])
    assert not found.rows_BSD[0, 4:].any()
    assert torch.equal(found.rows_BSD[1], rows_BSD[0])


def test_phases_are_apart_and_counted(tmp_path: Path) -> None:
    store, rows_BSD = RowStore(tmp_path, width=4, limit_bytes=2**16), torch.randn(1, 2, 4)
    samples = {"train": 1, "evaluate": 1}
    assert not store.full({})
    store.keep("train", (0,), Source(rows_BSD, (2,)))
    assert store.filled("train", samples)
    assert not store.has("evaluate", 0)
    assert not store.full(samples)
    store.keep("evaluate", (0,), Source(rows_BSD, (2,)))
    assert store.full(samples)


def test_what_finds_no_room_is_not_kept_at_all(tmp_path: Path) -> None:
    store, rows_BSD = RowStore(tmp_path, width=4, limit_bytes=1_200), torch.randn(2, 2, 4)
    assert store.keep("train", (0, 1), Source(rows_BSD, (2, 2)))
    assert not store.keep("train", (2, 3), Source(rows_BSD, (2, 2)))
    assert not store.has("train", 2)
    assert not RowStore(tmp_path, width=4, limit_bytes=0).keep(
        "train", (0,), Source(rows_BSD[:1], (2,))
    )

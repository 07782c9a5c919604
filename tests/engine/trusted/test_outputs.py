"""Rows on disk: whose they are, that they come back as they went, and that nothing false comes back."""

import os
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from splitlearn.engine.trusted.outputs import Outputs
from splitlearn.errors import AuditError
from splitlearn.tasks.batches import Batch
from splitlearn.wire.messages import Offer
from tests.wire.test_messages import OFFER

COLUMNS = 6


def batch_of(*texts: tuple[int, ...], width: int | None = None) -> Batch:
    lengths = tuple(map(len, texts))
    width = width or max(lengths)
    ids = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
    mask = (torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]).long()
    return Batch({"input_ids": ids, "attention_mask": mask}, {}, lengths, len(texts))


def output_of(batch: Batch, *, packed: bool = True) -> Tensor:
    """Numbers that follow from the ids alone, padding zero where it does not travel."""
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    rows = torch.stack([(ids + 1).float().pow(1 / (i + 1)) for i in range(COLUMNS)], dim=2)
    return rows * mask[:, :, None] if packed else rows


def outputs(
    folder: Path, offer: Offer = OFFER, *, packed: bool = True, limit: int = 10_000
) -> Outputs:
    return Outputs(folder, offer, packed=packed, limit_bytes=limit)


ONE, TWO, THREE = (5, 6, 7), (8, 9), (5, 6, 7, 4)


def test_examples_come_back_in_any_batch_to_the_bit(tmp_path: Path) -> None:
    kept = outputs(tmp_path)
    first = batch_of(ONE, TWO)
    assert not kept.hold([first])
    kept.put(first, output_of(first))
    again = batch_of(TWO, ONE, width=8)
    assert kept.hold([first, again])
    assert torch.equal(kept.get(again), output_of(again))
    assert not kept.hold([first, batch_of(ONE, THREE)])


def test_a_restart_finds_them_and_another_job_does_not(tmp_path: Path) -> None:
    made = batch_of(ONE, TWO)
    outputs(tmp_path).put(made, output_of(made))
    found = outputs(tmp_path, msgspec.structs.replace(OFFER, conversation="d" * 32, held=(3,)))
    assert torch.equal(found.get(made), output_of(made))
    for change in ({"job": "1" * 64}, {"bottlenecks": "5" * 64}, {"layers": "5" * 64}):
        other = tmp_path / str(change)
        other.mkdir()
        (other / "outputs.bin").write_bytes((tmp_path / "outputs.bin").read_bytes())
        assert not outputs(other, msgspec.structs.replace(OFFER, **change)).hold([made])
        assert (other / "outputs.bin").stat().st_size < 64


def test_where_padding_travels_a_row_is_of_one_padded_length(tmp_path: Path) -> None:
    kept = outputs(tmp_path, packed=False)
    made = batch_of(ONE, TWO)
    kept.put(made, output_of(made, packed=False))
    assert torch.equal(kept.get(made), output_of(made, packed=False))
    assert not kept.hold([batch_of(TWO, width=5)])


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_what_a_crash_cut_off_is_not_there_and_is_written_again(tmp_path: Path, cut: int) -> None:
    one, two = batch_of(ONE), batch_of(TWO)
    kept = outputs(tmp_path)
    kept.put(one, output_of(one))
    whole = (tmp_path / "outputs.bin").stat().st_size
    kept.put(two, output_of(two))
    size = (tmp_path / "outputs.bin").stat().st_size
    os.truncate(tmp_path / "outputs.bin", max(size - cut, whole))
    found = outputs(tmp_path)
    assert found.hold([one])
    assert not found.hold([two])
    found.put(two, output_of(two))
    assert torch.equal(outputs(tmp_path).get(two), output_of(two))


def test_a_damaged_row_counts_as_not_kept(tmp_path: Path) -> None:
    made = batch_of(ONE)
    outputs(tmp_path).put(made, output_of(made))
    path = tmp_path / "outputs.bin"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert not outputs(tmp_path).hold([made])


def test_what_finds_no_room_is_not_kept_and_what_is_stays(tmp_path: Path) -> None:
    kept = outputs(tmp_path, limit=200)
    one, two = batch_of(ONE), batch_of(TWO)
    kept.put(one, output_of(one))
    kept.put(two, output_of(two))
    assert kept.hold([one])
    assert not kept.hold([two])
    assert (tmp_path / "outputs.bin").stat().st_size <= 200


def test_the_file_is_its_owners_holds_no_ids_and_a_bad_place_is_told(tmp_path: Path) -> None:
    made = batch_of((1234567, 7654321))
    outputs(tmp_path).put(made, output_of(made))
    raw = (tmp_path / "outputs.bin").read_bytes()
    assert (tmp_path / "outputs.bin").stat().st_mode & 0o777 == 0o600
    assert (1234567).to_bytes(8, "little") not in raw
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match=r"outputs cannot be kept .* cut\.cache = false"):
        outputs(tmp_path / "file").hold([made])

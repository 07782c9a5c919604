from pathlib import Path

import msgspec
import pytest

from splitlearn.engine.streams.progress import KEPT, Member, Progress, Shelf
from splitlearn.errors import AuditError, ManifestError


def save(text: str) -> "object":
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(text)

    return write


def read(folder: Path) -> str:
    return (folder / "weights").read_text()


def progress(step: int) -> Progress:
    member = Member(language="sw", size=10, following=step, batches=step, tokens=8 * step, loss=2.5)
    return Progress(job="j", step=step, round=1, members={"bo": member}, digest=f"w{step}")


def test_the_newest_comes_back_with_all_that_was_put(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    for step in (5, 10, 15):
        shelf.save(progress(step), save(f"w{step}"))  # type: ignore[arg-type]
    assert shelf.held() == (10, 15)
    assert len(shelf.held()) == KEPT
    assert shelf.load(read) == progress(15)


def test_an_empty_shelf_holds_nothing(tmp_path: Path) -> None:
    assert Shelf(tmp_path / "none").load(read) is None


def test_a_half_written_checkpoint_is_none(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    shelf.save(progress(5), save("w5"))  # type: ignore[arg-type]

    def broken(folder: Path) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(AuditError, match=r"No space left on device.*free space"):
        shelf.save(progress(10), broken)
    assert shelf.load(read) == progress(5)
    assert [path.name for path in shelf.folder.iterdir()] == ["5"]


def test_weights_that_were_changed_are_named(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    shelf.save(progress(5), save("other"))  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match=r"digest is other.*expected w5"):
        shelf.load(read)


def test_a_progress_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    shelf.save(progress(5), save("w5"))  # type: ignore[arg-type]
    (shelf.folder / "5" / "progress.json").write_bytes(msgspec.json.encode({"job": 1}))
    with pytest.raises(ManifestError, match="cannot be read"):
        shelf.load(read)

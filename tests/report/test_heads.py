"""Which heads a report lists, and whose signature it believes."""

from pathlib import Path

import pytest

from splitlearn.report import heads
from splitlearn.report.document import PeerHead
from splitlearn.report.heads import key_of, list_heads
from tests.report.logs import KEY, OPEN, PEER, PEER_KEY, Talk, checked, opened, write

PEERS = (PeerHead(peer=PEER, key=PEER_KEY, size=1, root="0" * 64, mine=0, swaps=1),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with opened(tmp_path) as log:
        talk = Talk(log)
        talk.steps(range(2))
        talk.swap(size=20)
        talk.close()
    return tmp_path


def listed(folder: Path, *, key: str = KEY, peers: tuple[PeerHead, ...] = PEERS) -> heads.Heads:
    return list_heads(folder, key=key, covered=0, records=1000, peers=peers)[0]


def test_a_countersignature_is_checked_with_the_key_of_the_peer(folder: Path) -> None:
    assert [head.countersigned for head in listed(folder).listed] == [(PEER,), ()]
    other = (PeerHead(peer=PEER, key=KEY, size=1, root="0" * 64, mine=0, swaps=1),)
    assert all(not head.countersigned for head in listed(folder, peers=()).listed)
    path = min((folder / "checkpoints").glob("*.note"), key=lambda path: int(path.stem))
    text = path.read_text()
    path.write_text(text[:-12] + "A" * 10 + text[-2:])
    assert all(not head.countersigned for head in listed(folder).listed)
    assert listed(folder, peers=other).total >= 1


def test_a_head_that_is_not_signed_or_misnamed_is_not_listed(folder: Path) -> None:
    path = max((folder / "checkpoints").glob("*.note"), key=lambda path: int(path.stem))
    path.rename(path.with_name("7.note"))
    assert listed(folder).total == 1
    assert listed(folder, key="").total == 0
    assert listed(folder, key=PEER_KEY).total == 0
    (folder / "checkpoints" / "x.note").write_text("")
    assert listed(folder).total == 0


def test_the_root_is_that_of_the_head_that_fits(folder: Path) -> None:
    report = checked(folder)
    kept, root = list_heads(
        folder, key=KEY, covered=report.covered, records=report.records, peers=()
    )
    assert kept.listed[-1].size == report.covered
    assert len(root) == 64
    assert list_heads(folder, key=KEY, covered=0, records=1, peers=()) == (
        heads.Heads(total=0, listed=(), peers=()),
        "",
    )


def test_many_heads_are_thinned_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MAX_HEADS", 4)
    with opened(tmp_path) as log:
        log.append(OPEN)
        for _ in range(10):
            log.checkpoint()
            log.append(OPEN)
    found = listed(tmp_path)
    assert (found.total, len(found.listed)) == (11, 4)
    sizes = [head.size for head in found.listed]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == checked(tmp_path).covered


def test_a_key_is_the_one_told_or_the_folders_or_none(folder: Path, tmp_path: Path) -> None:
    assert key_of(folder, told=None) == KEY
    assert key_of(folder, told=f"{PEER_KEY}\n") == PEER_KEY
    assert key_of(folder, told="nonsense") == ""
    assert key_of(tmp_path / "none", told=None) == ""
    assert key_of(write(tmp_path / "another", OPEN), told=None) == KEY

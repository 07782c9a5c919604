import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from parties import discriminator
from splitlearn.coordination.claims import claimed, held
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.summon import GridSummon, Summon
from splitlearn.errors import ChannelError
from tests.tongues import tongues


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tongues(tmp_path, {"ana": "aa"}).job


def conduct(monkeypatch: pytest.MonkeyPatch, named: object, act: Callable[..., None]) -> None:
    """Run the ServerApp as Flower does, with `act` for what conducts."""
    conducting = types.ModuleType("parties.discriminating")
    vars(conducting)["conduct"] = act
    monkeypatch.setitem(sys.modules, "parties.discriminating", conducting)
    context = Context(
        run_id=1,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config={} if named is None else {"job": named},  # type: ignore[dict-item]
    )
    with LocalGrid(ClientApp()) as grid:
        discriminator.app(grid=grid, context=context)


def test_the_job_is_conducted_over_the_grid_by_one_process_at_a_time(
    monkeypatch: pytest.MonkeyPatch, job: Path
) -> None:
    seen = []
    claim = job.parent / "hub" / "run" / ".conducting"

    def act(path: Path, summon: Summon, *, processes: int) -> None:
        assert processes == 0
        assert isinstance(summon, GridSummon)
        assert held(claim)
        seen.append(path)

    conduct(monkeypatch, str(job), act)
    assert seen == [job]
    with (
        claimed(claim, otherwise=""),
        pytest.raises(RuntimeError, match=r"\[exit 2\] another process conducts the job"),
    ):
        conduct(monkeypatch, str(job), act)
    assert seen == [job]


def test_what_ends_a_job_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, job: Path
) -> None:
    def act(_path: Path, _summon: Summon, **_: int) -> None:
        raise ChannelError("a line is gone")

    with pytest.raises(RuntimeError, match=r"^\[exit 5\] a line is gone$"):
        conduct(monkeypatch, str(job), act)


@pytest.mark.parametrize("named", [None, "", 5])
def test_a_run_without_a_job_is_refused(monkeypatch: pytest.MonkeyPatch, named: object) -> None:
    with pytest.raises(RuntimeError, match="names no job"):
        conduct(monkeypatch, named, lambda *_: None)

import subprocess
import sys
import types
from pathlib import Path

import pytest

from parties import generator
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.summon import GridSummon, Reply


def test_a_round_is_streamed_by_whoever_streams_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    streaming = types.ModuleType("parties.generating")
    vars(streaming)["stream_round"] = lambda settings, told, *, processes: (
        f"{settings.name} {processes}".encode() + told
    )
    monkeypatch.setitem(sys.modules, "parties.generating", streaming)
    with LocalGrid(generator.app) as grid:
        node = grid.join("anna", settings=tmp_path / "generator.toml", processes=2)
        summon = GridSummon(grid)
        summon.open(b" one", 60)
        found: list[Reply] = []
        while not found:
            found = summon.poll()
    assert found == [Reply(node=node, party="anna", report=b"generator.toml 2 one")]


def test_neither_app_imports_torch_with_itself() -> None:
    for name in ("parties.generator", "parties.discriminator"):
        program = f"import sys, {name}; print('torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "False\n"

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from parties.run_metrics import METRICS, RunMetrics, write_metrics
from splitlearn.errors import AuditError
from splitlearn.roles import Kind

OURS = {"device": "cuda:1", "precision": "bf16"}


def work() -> Any:
    engine = SimpleNamespace(
        losses=[0.7, 0.6],
        step_s=[0.1, 0.2],
        rows={"train": 12, "evaluate": 0},
        sent=Counter({Kind.ACTIVATION: 300, Kind.OFFER: 40}),
        received=Counter({Kind.OUTPUT: 200}),
        errors={Kind.ACTIVATION: [0.4, 4]},
    )
    parties = [SimpleNamespace(bytes_sent=500, bytes_received=250)] * 2
    return SimpleNamespace(engine=engine, parties=parties)


def test_what_a_run_measured_reads_as_it_was_written(tmp_path: Path) -> None:
    manifest: Any = SimpleNamespace(run=SimpleNamespace(folder=tmp_path, **OURS))
    write_metrics(manifest, work(), {"accuracy": 0.9}, ())
    found = msgspec.json.decode((tmp_path / METRICS).read_bytes(), type=RunMetrics)
    assert found.sent == {"activation": 300, "offer": 40}
    assert found.errors == {"activation": 0.1}
    assert (found.device, found.precision) == ("cuda:1", "bf16")
    assert (found.channel_sent, found.channel_received) == (1_000, 500)
    assert (found.scores, found.losses, found.epsilon) == ({"accuracy": 0.9}, [0.7, 0.6], ())


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    manifest: Any = SimpleNamespace(run=SimpleNamespace(folder=tmp_path / "gone", **OURS))
    with pytest.raises(AuditError, match=r"gone/metrics\.json cannot be written"):
        write_metrics(manifest, work(), {}, ())

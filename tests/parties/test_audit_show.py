"""`splitlearn audit show`: one line a record, filters, a log that grows, and a payload taken apart."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from parties import audit_show
from parties.auditor import app
from splitlearn.audit import Blobs, read_records
from splitlearn.audit.blobs import RUN_KEY
from splitlearn.audit.records import decode
from splitlearn.errors import AuditError, ManifestError
from splitlearn.wire import frames, tensors
from tests.audit.pair import Pair
from tests.audit.test_dissect import META
from tests.audit.test_log import opened, segment
from tests.audit.test_records import EXAMPLES, OPEN, PAYLOAD

ROOT = Path(__file__).parents[2]


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["show", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """One record of each type."""
    with opened(tmp_path) as log:
        for record in EXAMPLES:
            log.append(record)
    return tmp_path


def test_every_type_of_record_has_its_line(log: Path) -> None:
    code, text = run(str(log))
    lines = text.splitlines()
    assert code == 0
    assert len(lines) == len(EXAMPLES) + 1
    types = [json.loads(msgspec.json.encode(record))["type"] for record in EXAMPLES]
    for line, name, index in zip(lines, types, range(len(lines)), strict=False):
        number, _, _, told, *rest = line.split()
        assert (int(number), told) == (index, name)
        assert rest


def test_filters_are_options(log: Path) -> None:
    code, text = run(str(log), "--verdict", "denied")
    assert (code, len(text.splitlines())) == (0, 1)
    assert "stopped by no-rule" in text
    assert len(run(str(log), "--type", "receipt", "--type", "redaction")[1].splitlines()) == 2
    assert len(run(str(log), "--kept")[1].splitlines()) == 1
    assert run(str(log), "--size", "2000:", "--step", "3")[1] == ""
    assert "activation" in run(str(log), "--kind", "activation", "--direction", "out")[1]
    assert run(str(log), "--direction", "up")[0] == 2


def test_records_come_whole_as_json_lines(log: Path) -> None:
    _, text = run(str(log), "--json")
    read = [decode(line.encode()) for line in text.splitlines()]
    assert read == [record for _, record in read_records(log)]


def test_a_hostile_name_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append(msgspec.structs.replace(PAYLOAD, peer="\x1b[2J", time=1e300))
        log.append(msgspec.structs.replace(OPEN, run="a\nb"))
    _, text = run(str(tmp_path))
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


def test_a_time_that_is_none_stops_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, clock=lambda: 1e300) as log:
        log.append(PAYLOAD)
    assert "no such time" in run(str(tmp_path))[1]


def test_a_growing_log_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path)
    pair.begin()
    left = [1, 2]

    def grow() -> bool:
        if left:
            left.pop()
            pair.step()
            return True
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_show, "_sleep", grow)
    code, text = run(str(pair.clinic.folder), "--follow", "--type", "payload")
    assert code == 130
    assert [line.split()[4] for line in text.splitlines() if "payload" in line] == [
        "out",
        "in",
        "out",
        "in",
    ]
    pair.end()


def test_a_log_without_news_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(audit_show.time, "sleep", slept.append)
    assert audit_show._sleep()
    assert slept == [audit_show.POLL_S]


def test_ctrl_c_ends_following_cleanly(log: Path) -> None:
    """A process of its own, ended as a person ends it."""
    running = subprocess.Popen(
        [sys.executable, "-m", "parties.cli", "audit", "show", str(log), "--follow"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert running.stdout is not None
    assert "run.open" in running.stdout.readline()
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in error


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A log whose record 1 is a frame of 13 rows that was kept, and record 2 one that was not."""
    folder = tmp_path / "kept"
    x_ND = np.random.default_rng(0).standard_normal((13, 32)).astype(np.float32)
    parts = (tensors.from_array("x", x_ND), tensors.from_array("shift", np.ones(1, np.int8)))
    raw = frames.encode(PAYLOAD.kind, seq=1, meta=META, payload=tensors.encode(parts))
    with opened(folder) as log:
        name = Blobs.open(folder, create=True).keep(raw)
        log.append(OPEN)
        log.append(
            msgspec.structs.replace(
                PAYLOAD,
                message=1,
                blob=name,
                wire_bytes=len(raw),
                codec="fp16",
                rows=13,
                columns=32,
            )
        )
        log.append(msgspec.structs.replace(PAYLOAD, message=2))
    return folder


def test_a_kept_payload_is_taken_apart(kept: Path) -> None:
    code, text = run(str(kept), "--payload", "1")
    assert code == 0
    assert "as recorded" in text
    assert "train step 3, micro-batch 1" in text
    assert "x  F32 [13, 32]  1,664 bytes" in text
    assert "█" in text
    assert "shift  I8 [1]  1 bytes" in text
    assert "too few values" in text
    assert "codec    fp16, 13 rows of 32" in text


def test_a_compressed_part_is_said_to_be_shown_as_its_bytes(tmp_path: Path) -> None:
    part = tensors.from_array("zstd", np.arange(256, dtype=np.uint8))
    raw = frames.encode(PAYLOAD.kind, seq=1, meta=META, payload=tensors.encode([part]))
    with opened(tmp_path) as log:
        name = Blobs.open(tmp_path, create=True).keep(raw)
        log.append(msgspec.structs.replace(PAYLOAD, message=1, blob=name, codec="int8+zstd"))
    assert "its bytes are what is shown" in run(str(tmp_path), "--payload", "0")[1]


def test_the_run_key_may_come_in_a_file_of_its_own(kept: Path, tmp_path: Path) -> None:
    key = tmp_path / "blobs.key"
    (kept / RUN_KEY).rename(key)
    with pytest.raises(AuditError, match="run key"):
        run(str(kept), "--payload", "1")
    assert "as recorded" in run(str(kept), "--payload", "1", "--blob-key", str(key))[1]
    with pytest.raises(ManifestError, match="--blob-key"):
        run(str(kept), "--payload", "1", "--blob-key", str(tmp_path / "none"))


def test_a_frame_that_is_not_the_recorded_one_is_said_so(kept: Path) -> None:
    path = segment(kept)
    path.write_bytes(path.read_bytes().replace(b'"message":1,', b'"message":3,'))
    assert "NOT as recorded" in run(str(kept), "--payload", "1")[1]


@pytest.mark.parametrize("record", ["0", "2", "99"])
def test_only_a_kept_payload_can_be_taken_apart(kept: Path, record: str) -> None:
    with pytest.raises(ManifestError, match="no kept frame"):
        run(str(kept), "--payload", record)


def test_what_is_no_log_or_no_range_is_the_callers_mistake(log: Path) -> None:
    for words in ([f"{log}x"], [str(log), "--step", "a"], [str(log), "--size", "1:2:3"]):
        with pytest.raises(ManifestError):
            run(*words)

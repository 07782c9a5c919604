"""What a conversation leaves in the log: terms, messages, a change of policy, sealed frames, totals."""

from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.audit import (
    Blobs,
    Exit,
    Payload,
    PolicyChange,
    RunClose,
    RunOpen,
    verify,
)
from splitlearn.codecs import build
from splitlearn.policy import load
from splitlearn.roles import Kind
from splitlearn.wire import tensors
from splitlearn.wire.messages import StepTensor
from tests.door import COMPUTE, POLICIES, TRUSTED, Door, offer, rows

OUTPUT = StepTensor(0, 0, 4, "train", 9, True, (), 5)


def test_a_run_is_opened_with_its_policy_and_without_its_salt(tmp_path: Path) -> None:
    door = Door(tmp_path)
    first = door.records[0]
    assert isinstance(first, RunOpen)
    assert (first.run, first.policy) == ("news", door.policy.digest)
    assert first.policy_text == door.policy.canonical.decode()
    assert (first.me.id, first.peer.id) == (TRUSTED.uri, COMPUTE.uri)
    assert first.vocabulary == 30_000
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert offer().salt.encode() not in everything


def test_a_whole_run_closes_clean(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(rows())
    x_ND = torch.randn(28, 8, generator=torch.Generator().manual_seed(1))
    frame = door.hear(Kind.OUTPUT, OUTPUT, tensors.encode(build("identity").encode(x_ND)))
    assert torch.equal(
        door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8), x_ND
    )
    door.gate.close(outcome="done")
    door.gate.close(outcome="failed")
    door.log.close()
    # After it two signed heads: of the conversation and of the log.
    close = door.records[-3]
    assert isinstance(close, RunClose)
    assert (close.outcome, close.messages_out, close.messages_in) == ("done", 3, 3)
    assert close.bytes_out == sum(len(released.raw) for released in door.tap)
    report = verify(tmp_path, verifier_key=door.log.verifier_key)
    assert report.exit is Exit.CLEAN, report.findings


def test_another_policy_in_the_same_run_is_announced_and_the_same_one_is_not(
    tmp_path: Path,
) -> None:
    for policy in ("demo", "demo", "research"):
        door = Door(tmp_path, policy=load(POLICIES / f"{policy}.toml"), opened=False)
        door.gate.close(outcome="interrupted")
        door.log.close()
    (change,) = (record for record in door.records if isinstance(record, PolicyChange))
    assert change.policy == load(POLICIES / "research.toml").digest
    assert change.before == load(POLICIES / "demo.toml").digest
    assert isinstance(door.records[change.seq + 1], RunOpen)


def test_a_frame_is_kept_where_that_was_asked_for_and_nowhere_else(tmp_path: Path) -> None:
    door = Door(tmp_path)
    kept = []
    for micro_batch in range(2):
        batch = rows(micro_batch=micro_batch)
        kept.append(
            door.say(
                Kind.ACTIVATION,
                batch.meta,
                tensor=batch.x_ND,
                codec=build("identity"),
                private=batch.private,
                keep=micro_batch == 1,
            )
        )
    sent = [r for r in door.records if isinstance(r, Payload) and r.kind is Kind.ACTIVATION]
    assert sent[0].blob == "withheld"
    assert Blobs.open(tmp_path, create=False).read(sent[1].blob) == kept[1].raw


@pytest.mark.parametrize(("codec", "error"), [("identity", None), ("int8", 0.005)])
def test_the_log_says_what_a_codec_lost(tmp_path: Path, codec: str, error: float | None) -> None:
    door = Door(tmp_path)
    batch = rows()
    released = door.send(batch, codec=build(codec))
    record = door.records[-1]
    assert isinstance(record, Payload)
    if error is None:
        assert record.error is msgspec.UNSET
        assert released.error == 0
    else:
        assert record.error == released.error == pytest.approx(error, rel=0.8)

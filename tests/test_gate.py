"""The door: what passes is logged first, byte for byte; after any fault nothing passes any more."""

import hmac
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitlearn.audit import Denied, Exit, Gap, Log, Payload, RunClose, RunOpen, verify
from splitlearn.codecs import build, to_part
from splitlearn.errors import AuditError, RefusedError, SessionError, WireError
from splitlearn.gate import Gate
from splitlearn.policy import Policy, load
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import Empty, Shard, Step, StepTensor
from splitlearn.wire.tensors import Part
from tests.door import COMPUTE, POLICIES, SIGNER, TRUSTED, WIDTH, Door, offer, rows

SALT = bytes.fromhex(offer().salt)
OUTPUT = StepTensor(0, 0, 4, "train", 9, True, (), 5)


def output(*, columns: int = 8, value: float | None = None) -> bytes:
    """The payload of an answer to `rows()`."""
    x_ND = torch.randn(28, columns, generator=torch.Generator().manual_seed(1))
    if value is not None:
        x_ND[3, 2] = value
    return tensors.encode(build("identity").encode(x_ND))


def weights(**changes: object) -> tuple[Part, ...]:
    tensor = torch.ones(3, WIDTH)
    return (to_part("layers.1.weight", tensor), to_part("layers.1.bias", torch.zeros(3)))


def compute_door(folder: Path) -> tuple[Gate, Session]:
    session = Session(me=Role.COMPUTE, peer=Role.TRUSTED)
    log = Log.open(folder, origin="example.org/farm/news", signer=SIGNER, clock=lambda: 1.7e9)
    gate = Gate.open(
        load(POLICIES / "compute.toml"),
        log=log,
        session=session,
        me=COMPUTE,
        peer=TRUSTED,
        binding="e" * 64,
        offer=offer(),
        software="splitlearn test",
    )
    return gate, session


def test_what_is_released_is_logged_and_reads_back_as_what_was_meant(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows()
    released = door.send(batch, codec=build("identity"))
    frame = frames.decode(released.raw)
    assert (frame.kind, frame.meta, frame.seq) == (Kind.ACTIVATION, batch.meta, released.seq)
    x_ND = build("identity").decode(tensors.decode(frame.payload), rows=28, width=WIDTH)
    assert torch.equal(x_ND, batch.x_ND)
    record = door.records[-1]
    assert isinstance(record, Payload)
    assert record.commit == hmac.digest(SALT, released.raw, "sha256").hex()
    assert record.wire_bytes == len(released.raw)
    assert (record.message, record.kind, record.rules) == (released.seq, Kind.ACTIVATION, ("activation",))
    assert (record.rows, record.columns, record.examples, record.longest) == (28, WIDTH, 4, 9)
    assert (record.codec, record.step, record.phase) == ("identity", 0, "train")
    assert record.me, record.peer == (TRUSTED.uri, COMPUTE.uri)
    assert "lengths" in record.side
    assert [(part.name, part.dtype, part.shape) for part in record.parts] == [("x", "F32", (28, WIDTH))]


@pytest.mark.parametrize("codec", ["identity", "fp16", "bf16", "int8", "int8+zstd"])
@pytest.mark.parametrize("seed", range(3))
def test_every_codec_passes_its_own_door(tmp_path: Path, codec: str, seed: int) -> None:
    door = Door(tmp_path)
    released = door.send(rows(seed=seed), codec=build(codec))
    assert door.tap[-1] == released


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
    frame = door.hear(Kind.OUTPUT, OUTPUT, output())
    x_ND = door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8)
    assert x_ND.shape == (28, 8)
    door.gate.close(outcome="done")
    door.gate.close(outcome="failed")
    door.log.close()
    close = door.records[-2]
    assert isinstance(close, RunClose)
    assert (close.outcome, close.messages_out, close.messages_in) == ("done", 3, 3)
    assert close.bytes_out == sum(len(released.raw) for released in door.tap)
    report = verify(tmp_path, verifier_key=door.log.verifier_key)
    assert report.exit is Exit.CLEAN, report.findings


def test_both_parties_log_the_same_commitments(tmp_path: Path) -> None:
    door = Door(tmp_path / "trusted", opened=False)
    gate, session = compute_door(tmp_path / "compute")
    gate.admit(frames.decode(door.say(Kind.OFFER, offer()).raw))
    assert session.offer == offer()
    here = door.records[-1]
    there = Door.records.fget(replace_folder(door, tmp_path / "compute"))[-1]  # type: ignore[attr-defined]
    assert isinstance(here, Payload)
    assert isinstance(there, Payload)
    assert (here.direction, there.direction) == ("out", "in")
    assert (here.commit, here.wire_bytes, here.message) == (there.commit, there.wire_bytes, there.message)


def replace_folder(door: Door, folder: Path) -> Door:
    other = object.__new__(Door)
    other.folder = folder
    return other


def test_weights_pass_in_parts_and_come_back(tmp_path: Path) -> None:
    door = Door(tmp_path, opened=False)
    door.say(Kind.OFFER, offer())
    door.hear(Kind.ACCEPT, frames.decode(door.answer(Kind.ACCEPT, accept()).raw).meta) if False else None

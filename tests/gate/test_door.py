"""The door: what passes is logged first, byte for byte; after any fault nothing passes any more."""

import hmac
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.audit import Denied, Exit, Gap, Log, Payload, verify
from splitlearn.codecs import Identity, build, to_part
from splitlearn.errors import AuditError, RefusedError, SessionError, WireError
from splitlearn.gate import Gate
from splitlearn.policy import Ledger, Policy, Rule, load
from splitlearn.roles import Kind, Role
from splitlearn.session import Session
from splitlearn.wire import frames, tensors
from splitlearn.wire.messages import Accept, Empty, Finish, Resume, Shard, Step, StepTensor
from splitlearn.wire.tensors import Part
from tests.door import COMPUTE, POLICIES, SIGNER, TRUSTED, WIDTH, Door, offer, records, rows

SALT = bytes.fromhex(offer().salt)
OUTPUT = StepTensor(0, 0, 4, "train", 9, True, (), 5)


def output(*, columns: int = 8, value: float | None = None) -> bytes:
    """The payload of an answer to `rows()`."""
    x_ND = torch.randn(28, columns, generator=torch.Generator().manual_seed(1))
    if value is not None:
        x_ND[3, 2] = value
    return tensors.encode(build("identity").encode(x_ND))


WEIGHTS = (
    to_part("layers.1.weight", torch.ones(3, WIDTH)),
    to_part("layers.1.bias", torch.zeros(3)),
)


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


def in_the_trunk(folder: Path) -> Gate:
    """A compute party's gate that owes an output for `rows()`."""
    door = Door(folder / "trusted", opened=False)
    gate, _ = compute_door(folder / "compute")
    gate.admit(frames.decode(door.say(Kind.OFFER, offer()).raw))
    door.gate.admit(frames.decode(gate.release(Kind.ACCEPT, meta=Accept((), (), 0)).raw))
    gate.admit(frames.decode(door.gate.release(Kind.RESUME, meta=Resume(0, 0)).raw))
    door.gate.admit(frames.decode(gate.release(Kind.READY, meta=Empty()).raw))
    batch = rows()
    released = door.gate.release(
        Kind.ACTIVATION,
        meta=batch.meta,
        tensor=batch.x_ND,
        codec=build("identity"),
        private=batch.private,
    )
    gate.admit(frames.decode(released.raw))
    return gate


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
    assert (record.message, record.kind, record.rules) == (
        released.seq,
        Kind.ACTIVATION,
        ("activation",),
    )
    assert (record.rows, record.columns, record.examples, record.longest) == (28, WIDTH, 4, 9)
    assert (record.codec, record.step, record.phase) == ("identity", 0, "train")
    assert (record.me, record.peer) == (TRUSTED.uri, COMPUTE.uri)
    assert "lengths" in record.side
    assert [(part.name, part.dtype, part.shape) for part in record.parts] == [
        ("x", "F32", (28, WIDTH))
    ]


@pytest.mark.parametrize("codec", ["identity", "fp16", "bf16", "int8", "int8+zstd"])
@pytest.mark.parametrize("seed", range(3))
def test_every_codec_passes_its_own_door(tmp_path: Path, codec: str, seed: int) -> None:
    door = Door(tmp_path)
    released = door.send(rows(seed=seed), codec=build(codec))
    assert door.tap[-1] == released


def test_both_parties_log_the_same_commitments(tmp_path: Path) -> None:
    door = Door(tmp_path / "trusted", opened=False)
    gate, session = compute_door(tmp_path / "compute")
    gate.admit(frames.decode(door.say(Kind.OFFER, offer()).raw))
    assert session.offer == offer()
    here = door.records[-1]
    there = records(tmp_path / "compute")[-1]
    assert isinstance(here, Payload)
    assert isinstance(there, Payload)
    assert (here.direction, there.direction) == ("out", "in")
    assert (here.commit, here.wire_bytes) == (there.commit, there.wire_bytes)
    assert here.message == there.message == 1


def test_weights_pass_both_ways_in_parts(tmp_path: Path) -> None:
    door = Door(tmp_path, opened=False)
    door.agree()
    released = door.say(Kind.WEIGHTS, Shard(0, 1), parts=WEIGHTS)
    assert tensors.decode(frames.decode(released.raw).payload) == WEIGHTS
    door.say(Kind.RESUME, Resume(0, 0))
    door.hear(Kind.READY, Empty())
    door.say(Kind.FINISH, Finish(True))
    frame = door.hear(Kind.WEIGHTS, Shard(0, 1), tensors.encode(WEIGHTS))
    assert door.gate.open_parts(frame) == WEIGHTS


def test_an_evaluation_is_checked_as_training_is(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows()
    batch.meta = StepTensor(0, 0, 4, "evaluate", 9, True, batch.private.lengths, 0)
    door.send(batch)
    assert door.records[-1].phase == "evaluate"  # type: ignore[union-attr]


def test_a_gradient_needs_no_lengths_beside_it(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows()
    door.send(batch)
    door.hear(Kind.OUTPUT, OUTPUT, output())
    gradient = torch.zeros(28, 8)
    gradient[0] = 0.25 * torch.randn(8)
    released = door.say(
        Kind.GRADIENT,
        StepTensor(0, 0, 4, "train", 9, True, (), 0),
        tensor=gradient,
        codec=build("fp16"),
        private=batch.private,
    )
    assert released.kind is Kind.GRADIENT


def test_padded_rows_pass_where_padding_travels(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows(lengths=(9, 4))
    batch.meta = StepTensor(0, 0, 4, "train", 9, False, (9, 4), 0)
    batch.x_ND = torch.randn(18, WIDTH, generator=torch.Generator().manual_seed(0))
    door.send(batch)


def test_a_compute_party_may_send_what_it_has_computed_and_no_more(tmp_path: Path) -> None:
    door = Door(tmp_path / "trusted", opened=False)
    gate, _ = compute_door(tmp_path / "compute")
    gate.admit(frames.decode(door.say(Kind.OFFER, offer()).raw))
    gate.release(Kind.ACCEPT, meta=Accept((), (), 0))
    with pytest.raises(RefusedError) as caught:
        gate.release(Kind.OFFER, meta=offer())
    assert caught.value.rule == "no-rule"


def test_what_a_compute_party_computed_is_checked_for_finite_numbers_only(tmp_path: Path) -> None:
    for value, passes in ((2.0, True), (float("nan"), False)):
        gate = in_the_trunk(tmp_path / str(passes))
        x_ND = torch.full((28, 8), value)
        if passes:
            assert gate.release(Kind.OUTPUT, meta=OUTPUT, tensor=x_ND, codec=build("fp16"))
            continue
        with pytest.raises(RefusedError) as caught:
            gate.release(Kind.OUTPUT, meta=OUTPUT, tensor=x_ND, codec=build("fp16"))
        assert caught.value.rule == "content.finite"


def test_without_a_norm_in_the_policy_none_is_asked_for(tmp_path: Path) -> None:
    demo = load(POLICIES / "demo.toml")
    free = Policy(
        name="free",
        rules=tuple(msgspec.structs.replace(rule, max_row_norm=None) for rule in demo.rules),
    )
    door = Door(tmp_path, policy=free)
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output(value=1e7))
    door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8)


def test_metadata_that_read_back_differently_are_not_released(tmp_path: Path) -> None:
    door = Door(tmp_path / "trusted", opened=False)
    gate, _ = compute_door(tmp_path / "compute")
    gate.admit(frames.decode(door.say(Kind.OFFER, offer()).raw))
    with pytest.raises(RefusedError) as caught:
        gate.release(Kind.ACCEPT, meta=Accept([3], (), 0))  # type: ignore[arg-type]
    assert caught.value.rule == "content.frame"


def test_what_the_codec_itself_cannot_read_back_is_not_released(tmp_path: Path) -> None:
    class Forgetful(Identity):
        def decode(self, parts: Sequence[Part], *, rows: int, width: int) -> torch.Tensor:
            raise WireError("what is this?")

    door, batch = Door(tmp_path), rows()
    error = door.refuses(
        Kind.ACTIVATION,
        batch.meta,
        tensor=batch.x_ND,
        codec=Forgetful(),
        private=batch.private,
    )
    assert isinstance(error, RefusedError)
    assert error.rule == "content.layout"


def test_a_refusal_says_the_rule_and_leaves_shape_and_rule_in_the_log(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows()
    batch.x_ND[3, 2] = float("nan")
    with pytest.raises(RefusedError) as caught:
        door.send(batch)
    record = door.records[-1]
    assert isinstance(record, Denied)
    assert record.rule == caught.value.rule == "content.finite"
    assert (record.kind, record.direction) == (Kind.ACTIVATION, "out")
    assert [part.shape for part in record.parts] == [(28, WIDTH)]
    assert len(door.tap) == 2  # offer and resume


def test_after_a_refusal_the_door_stays_shut_for_everything(tmp_path: Path) -> None:
    door, batch = Door(tmp_path), rows()
    batch.x_ND[3, 2] = float("inf")
    door.refuses(
        Kind.ACTIVATION, batch.meta, tensor=batch.x_ND, codec=build("fp16"), private=batch.private
    )
    for kind, meta in ((Kind.FINISH, Finish(False)), (Kind.CHECKPOINT, Step(0))):
        error = door.refuses(kind, meta)
        assert isinstance(error, RefusedError)
        assert error.rule == "gate-shut"
        assert "content.finite" in str(error)
    good = rows()
    error = door.refuses(
        Kind.ACTIVATION, good.meta, tensor=good.x_ND, codec=build("fp16"), private=good.private
    )
    assert "start the run again" in str(error)
    door.gate.close(outcome="refused")
    door.log.close()
    report = verify(tmp_path, verifier_key=door.log.verifier_key)
    assert report.exit is Exit.POLICY


def test_a_message_at_an_illegal_moment_shuts_the_door_too(tmp_path: Path) -> None:
    door = Door(tmp_path)
    assert isinstance(door.refuses(Kind.OFFER, offer()), SessionError)
    assert isinstance(door.refuses(Kind.FINISH, Finish(False)), RefusedError)
    assert [r.rule for r in door.records if isinstance(r, Denied)] == ["SessionError"]


def test_an_exception_that_nobody_foresaw_shuts_the_door_too(tmp_path: Path) -> None:
    class Broken:
        name = "identity"

        def encode(self, x_ND: torch.Tensor) -> tuple[Part, ...]:
            raise ZeroDivisionError

    door, batch = Door(tmp_path), rows()
    with pytest.raises(ZeroDivisionError):
        door.send(batch, codec=Broken())  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="ZeroDivisionError"):
        door.send(rows())
    assert len(door.tap) == 2


def test_what_cannot_be_logged_is_not_released(tmp_path: Path) -> None:
    door = Door(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "log" / "000000.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(AuditError, match="nothing is sent"):
            door.send(rows())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(door.tap) == 2
    with pytest.raises(RefusedError, match="AuditError"):
        door.send(rows())
    with pytest.raises(AuditError):
        door.gate.close(outcome="failed")


def test_a_run_whose_log_cannot_be_opened_has_no_door(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AuditError):
        Door(tmp_path / "file")


def test_a_crash_between_log_and_send_leaves_a_record_and_a_gap(tmp_path: Path) -> None:
    """The log may say more than what left, never less."""
    door = Door(tmp_path)
    door.send(rows())
    door.log._release()  # the process ends here
    again = Door(tmp_path)
    kinds = [type(record) for record in again.records]
    assert kinds.count(Gap) == 1
    again.gate.close(outcome="done")
    again.log.close()
    assert verify(tmp_path, verifier_key=again.log.verifier_key).exit is Exit.CLEAN


def test_a_runs_budget_holds_over_a_restart(tmp_path: Path) -> None:
    demo = load(POLICIES / "demo.toml")
    size = len(Door(tmp_path / "measure").send(rows()).raw)
    tight = Policy(
        name="tight",
        rules=tuple(
            rule if rule.id != "activation" else replace_limit(rule, size * 2 - 1)
            for rule in demo.rules
        ),
    )
    door = Door(tmp_path / "run", policy=tight)
    door.send(rows())
    door.log.close()
    again, batch = Door(tmp_path / "run", policy=tight), rows()
    error = again.refuses(
        Kind.ACTIVATION,
        batch.meta,
        tensor=batch.x_ND,
        codec=build("identity"),
        private=batch.private,
    )
    assert isinstance(error, RefusedError)
    assert error.rule == "activation.max_run_bytes"


def replace_limit(rule: Rule, limit: int) -> Rule:
    return msgspec.structs.replace(rule, max_run_bytes=limit)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_answer_that_is_not_finite_is_the_peers_fault(tmp_path: Path, value: float) -> None:
    door = Door(tmp_path)
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output(value=value))
    with pytest.raises(WireError, match="NaN or infinity"):
        door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8)
    record = door.records[-1]
    assert isinstance(record, Denied)
    assert (record.direction, record.rule) == ("in", "WireError")
    assert isinstance(door.refuses(Kind.FINISH, Finish(False)), RefusedError)


def test_an_answer_over_the_norm_is_the_peers_fault(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output(value=1e7))
    with pytest.raises(WireError, match="norm"):
        door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8)


def test_an_answer_of_another_shape_is_the_peers_fault(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output(columns=9))
    with pytest.raises(WireError):
        door.gate.open_tensor(frame, codec=build("identity"), rows=28, width=8)


def test_an_answer_that_the_policy_does_not_name_is_refused_unopened(tmp_path: Path) -> None:
    door = Door(tmp_path, policy=load(POLICIES / "strict.toml"))
    door.say(Kind.FINISH, Finish(True))
    with pytest.raises(RefusedError) as caught:
        door.hear(Kind.WEIGHTS, Shard(0, 1), tensors.encode(WEIGHTS))
    assert caught.value.rule == "no-rule"


def test_an_answer_of_another_dtype_or_codec_than_the_policys_is_refused(tmp_path: Path) -> None:
    door = Door(tmp_path / "a")
    door.send(rows())
    ids = tensors.encode((to_part("x", torch.zeros(28, 8, dtype=torch.int64)),))
    with pytest.raises(RefusedError) as caught:
        door.hear(Kind.OUTPUT, OUTPUT, ids)
    assert caught.value.rule == "output.dtypes"
    door = Door(tmp_path / "b")
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output())
    with pytest.raises(RefusedError) as caught:
        door.gate.open_tensor(frame, codec=build("identity+zstd"), rows=28, width=8)
    assert caught.value.rule == "output.codecs"


def test_a_repeated_answer_shuts_the_door(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.send(rows())
    frame = door.hear(Kind.OUTPUT, OUTPUT, output())
    with pytest.raises(SessionError, match="repeats"):
        door.gate.admit(frame)


def test_weights_that_are_not_finite_do_not_come_in(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.say(Kind.FINISH, Finish(True))
    part = to_part("layers.1.weight", torch.full((2, 2), float("nan")))
    frame = door.hear(Kind.WEIGHTS, Shard(0, 1), tensors.encode((part,)))
    with pytest.raises(WireError, match="may not come in"):
        door.gate.open_parts(frame)


def test_the_gate_itself_brings_no_torch() -> None:
    script = (
        "import sys, splitlearn.audit, splitlearn.policy, splitlearn.gate; "
        "sys.exit(' '.join(n for n in sys.modules if n in {'torch', 'transformers'}))"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


def test_doors_towards_several_peers_share_one_budget(tmp_path: Path) -> None:
    demo = load(POLICIES / "demo.toml")
    size = len(Door(tmp_path / "measure").send(rows()).raw)
    tight = Policy(
        name="tight",
        rules=tuple(
            rule if rule.id != "activation" else replace_limit(rule, size * 2 - 1)
            for rule in demo.rules
        ),
    )
    ledger = Ledger(tight, spent={})
    doors = [Door(tmp_path / name, policy=tight, ledger=ledger) for name in ("farm", "barn")]
    doors[0].send(rows())
    batch = rows()
    error = doors[1].refuses(
        Kind.ACTIVATION,
        batch.meta,
        tensor=batch.x_ND,
        codec=build("identity"),
        private=batch.private,
    )
    assert isinstance(error, RefusedError)
    assert error.rule == "activation.max_run_bytes"

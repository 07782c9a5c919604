"""What a user sees when a peer sends what it may not, or a stage of our own tries to.

Bytes from a peer end the run with exit code 4 and the peer is told; what our own gate refuses ends it
with 3, and a tap on the wire shows that nothing of it went out.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from splitlearn.audit import Denied, Payload, RunClose
from splitlearn.codecs import build
from splitlearn.engine.payloads.weights import shards
from splitlearn.engine.trusted import launch, line
from splitlearn.engine.trusted.flight import Flight
from splitlearn.errors import ChannelError, IdentityError, PeerError, RefusedError
from splitlearn.identity import Identity
from splitlearn.manifest import load_job
from splitlearn.roles import Kind, Role
from splitlearn.wire import frames, tensors
from splitlearn.wire.frames import Frame
from splitlearn.wire.limits import MAX_FRAME_BYTES
from splitlearn.wire.messages import StepTensor
from splitlearn.wire.tensors import Part
from tests.door import records
from tests.federation import make_identity
from tests.integration.clinic import (
    WIDTH,
    Clinic,
    Outcome,
    Peer,
    answering,
    container,
    honest,
    splitlearn,
    write_model,
)
from tests.link import LinkProxy
from tests.rig import compute_party


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def clinic(tmp_path: Path, model: Path) -> Clinic:
    make_identity(tmp_path, "clinic", Role.TRUSTED)
    return Clinic(tmp_path, model)


@pytest.fixture
def gpuhost(tmp_path: Path) -> Identity:
    return make_identity(tmp_path, "gpuhost", Role.COMPUTE)


PLAIN: dict[str, object] = {"activation": "identity", "output": "identity"}


# Answers to the first activation, which asks for rows of float32


def rows_of(frame: Frame) -> int:
    assert isinstance(frame.meta, StepTensor)
    return sum(frame.meta.lengths)


def reply(frame: Frame, payload: bytes, *, seq: int = 4, kind: Kind = Kind.OUTPUT) -> bytes:
    assert isinstance(frame.meta, StepTensor)
    meta = msgspec.structs.replace(frame.meta, lengths=(), reply_to=frame.seq)
    return frames.encode(kind, seq=seq, meta=meta, payload=payload)


def numbers(rows: int, *, value: float = 0.25) -> bytes:
    return np.full((rows, WIDTH), value, dtype="<f4").tobytes()


def right(frame: Frame) -> bytes:
    rows = rows_of(frame)
    return reply(frame, container("F32", (rows, WIDTH), numbers(rows)))


def a_frame_over_the_limit(frame: Frame) -> bytes:
    """Claims 2 GB and would have us wait for them."""
    raw = bytearray(right(frame))
    raw[20:28] = (2 * 10**9).to_bytes(8, "big")
    return bytes(raw)


def a_frame_of_another_protocol(frame: Frame) -> bytes:
    raw = bytearray(right(frame))
    raw[4] = 2
    return bytes(raw)


def an_unknown_dtype(frame: Frame) -> bytes:
    rows = rows_of(frame)
    return reply(frame, container("F8_E4M3", (rows, WIDTH), bytes(rows * WIDTH)))


def a_dtype_that_was_not_agreed(frame: Frame) -> bytes:
    rows = rows_of(frame)
    return reply(frame, container("F16", (rows, WIDTH), bytes(2 * rows * WIDTH)))


def a_shape_that_does_not_match_its_bytes(frame: Frame) -> bytes:
    rows = rows_of(frame)
    return reply(frame, container("F32", (rows + 1, WIDTH), numbers(rows)))


def a_row_less_than_asked(frame: Frame) -> bytes:
    rows = rows_of(frame) - 1
    return reply(frame, container("F32", (rows, WIDTH), numbers(rows)))


def a_nan(frame: Frame) -> bytes:
    rows = rows_of(frame)
    nans = numbers(rows, value=float("nan"))
    return reply(frame, container("F32", (rows, WIDTH), nans))


def a_number_said_before(frame: Frame) -> bytes:
    rows = rows_of(frame)
    return reply(frame, container("F32", (rows, WIDTH), numbers(rows)), seq=2)


def a_gradient_nobody_asked_for(frame: Frame) -> bytes:
    rows = rows_of(frame)
    payload = container("F32", (rows, WIDTH), numbers(rows))
    return reply(frame, payload, kind=Kind.INPUT_GRADIENT)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (a_frame_over_the_limit, f"expected at most 65536 and {MAX_FRAME_BYTES}"),
        (a_frame_of_another_protocol, "a frame is of protocol 2; expected 1"),
        (an_unknown_dtype, "F8_E4M3"),
        (a_dtype_that_was_not_agreed, "F16"),
        (a_shape_that_does_not_match_its_bytes, "bytes"),
        (a_row_less_than_asked, "where the agreed codec writes 'x' of F32 and shape"),
        (a_nan, "sent what may not come in: a tensor of shape"),
        (a_number_said_before, "message 2 (output) repeats the conversation"),
        (a_gradient_nobody_asked_for, "input_gradient"),
    ],
)
def test_what_a_peer_may_not_send_ends_the_run_and_the_peer_hears_why(
    clinic: Clinic, gpuhost: Identity, bad: Callable[[Frame], bytes], why: str
) -> None:
    with Peer(gpuhost, answering(bad)) as peer:
        outcome = splitlearn("trusted", "train", clinic.job(peer.address, codec=PLAIN))
        told = peer.ended()
    assert why in outcome.error
    assert outcome.code == PeerError.exit_code
    assert isinstance(told, PeerError)
    assert why in str(told)
    kept = records(clinic.run / "audit")
    assert isinstance(kept[-1], RunClose) or kept[-1].__class__.__name__ == "Checkpointed"
    assert [r.outcome for r in kept if isinstance(r, RunClose)] == ["failed"]


def test_a_silent_peer_ends_the_run_with_its_name_the_step_and_what_was_awaited(
    clinic: Clinic, gpuhost: Identity
) -> None:
    with Peer(gpuhost, answering(lambda _: None)) as peer:
        job = clinic.job(peer.address, run={"deadline_s": 2.0})
        outcome = splitlearn("trusted", "train", job)
    assert "compute.gpuhost.fed.example sent nothing" in outcome.error
    assert "awaited output of step 0" in outcome.error
    assert outcome.code == ChannelError.exit_code


# Weights of another model


def test_weights_of_another_digest_are_refused_by_the_peer(
    clinic: Clinic, gpuhost: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(state: Mapping[str, Tensor]) -> list[tuple[Part, ...]]:
        return shards({name: tensor + 1 for name, tensor in state.items()})

    monkeypatch.setattr(line, "shards", other)
    with Peer(gpuhost, honest(compute_party(tmp_path))) as peer:
        outcome = splitlearn("trusted", "train", clinic.job(peer.address))
        ended = peer.ended()
    assert "have another digest than its offer names" in outcome.error
    assert outcome.code == PeerError.exit_code
    assert isinstance(ended, IdentityError)
    assert not list((tmp_path / "gpuhost" / "received").glob("*.safetensors"))


def test_a_run_does_not_go_on_with_another_model(clinic: Clinic, tmp_path: Path) -> None:
    run = {"deadline_s": 0.1}
    job = clinic.job(run=run)
    assert splitlearn("trusted", "train", job).code == ChannelError.exit_code
    (load_job(job).run.folder / "checkpoints").mkdir()
    other = write_model(tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    job = clinic.job(run=run, model={"path": str(other)})
    outcome = splitlearn("trusted", "train", job)
    assert "holds a run of another job, model or data" in outcome.error
    assert outcome.code == 2


# A stage of ours that puts in what may not leave

Leak = Callable[[Tensor, Mapping[str, Tensor]], Tensor]


def nothing(h_BTD: Tensor, _: Mapping[str, Tensor]) -> Tensor:
    return h_BTD


def not_a_number(h_BTD: Tensor, _: Mapping[str, Tensor]) -> Tensor:
    h_BTD[0, 0, 0] = float("nan")
    return h_BTD


def labels(h_BTD: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    h_BTD[:, :, 3] = inputs["labels"].float()[:, None]
    return h_BTD


def labels_scaled(h_BTD: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    h_BTD[:, :, 3] = 0.37 * inputs["labels"].float()[:, None] - 0.21
    return h_BTD


def ids(h_BTD: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    h_BTD[:, :, 3] = inputs["input_ids"].float()
    return h_BTD


def ids_scaled(h_BTD: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    h_BTD[:, :, 3] = inputs["input_ids"].float() / 30_000
    return h_BTD


class Tapped:
    """A run over a link with a tap; `before` is what had gone up when the stage gave its tensor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, proxy: LinkProxy, leak: Leak) -> None:
        self.before = 0
        self.payload_bytes = 0
        self._proxy = proxy
        tapped = self

        class Patched(Flight):
            def __init__(self, model: nn.Module, *, inputs: Mapping[str, Tensor]) -> None:
                super().__init__(model, inputs=inputs)
                self._inputs = inputs

            def to_cut(self) -> Tensor:
                h_BTD = super().to_cut().detach().clone()
                tapped.before = tapped.before or proxy.up.carried
                tapped.payload_bytes = 4 * WIDTH * int(self._inputs["attention_mask"].sum())
                return leak(h_BTD, self._inputs)

        monkeypatch.setattr(launch, "Flight", Patched)

    @property
    def after(self) -> int:
        """Bytes that went up since."""
        return self._proxy.up.carried - self.before


def run_tapped(
    clinic: Clinic, gpuhost: Identity, leak: Leak, monkeypatch: pytest.MonkeyPatch
) -> tuple[Outcome, Tapped, BaseException | None]:
    party = compute_party(clinic.folder)
    with Peer(gpuhost, honest(party)) as peer, LinkProxy(("127.0.0.1", peer.port)) as proxy:
        tapped = Tapped(monkeypatch, proxy, leak)
        job = clinic.job(
            proxy.address,
            codec=PLAIN,
            schedule={"epochs": None, "steps": 1, "batch_size": 48},
        )
        outcome = splitlearn("trusted", "train", job)
        ended = peer.ended()
    return outcome, tapped, ended


@pytest.mark.parametrize(
    ("leak", "rules"),
    [
        (not_a_number, {"content.finite"}),
        (labels, {"content.whole"}),
        (labels_scaled, {"content.distinct", "content.labels"}),
        (ids, {"content.whole"}),
        (ids_scaled, {"content.ids"}),
    ],
)
def test_what_a_patched_stage_puts_in_is_refused_and_not_on_the_wire(
    clinic: Clinic,
    gpuhost: Identity,
    monkeypatch: pytest.MonkeyPatch,
    leak: Leak,
    rules: set[str],
) -> None:
    outcome, tapped, ended = run_tapped(clinic, gpuhost, leak, monkeypatch)
    assert "our own stage" in outcome.error or "NaN or infinity" in outcome.error
    assert outcome.code == RefusedError.exit_code
    # What still went up is acknowledgements and the goodbye, far less than the tensor.
    assert tapped.payload_bytes > 100_000
    assert tapped.after < 4_000
    ours = records(clinic.run / "audit")
    assert {record.rule for record in ours if isinstance(record, Denied)} <= rules
    assert [record.outcome for record in ours if isinstance(record, RunClose)] == ["refused"]
    # The peer neither got it nor learns more than that there was something.
    assert isinstance(ended, PeerError)
    assert str(ended).endswith("the run was stopped here: RefusedError")
    theirs = records(clinic.folder / "gpuhost" / "audit")
    for kept in (ours, theirs):
        assert Kind.ACTIVATION not in {r.kind for r in kept if isinstance(r, Payload)}


def test_the_tap_sees_what_an_honest_stage_sends(
    clinic: Clinic, gpuhost: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, tapped, ended = run_tapped(clinic, gpuhost, nothing, monkeypatch)
    assert (outcome.code, ended) == (0, None)
    assert tapped.after > tapped.payload_bytes > 100_000


def test_the_right_answer_of_these_tests_is_right(clinic: Clinic, gpuhost: Identity) -> None:
    """So that what the wrong ones are refused for is what is wrong with them."""
    heard: list[bytes] = []

    def keep(frame: Frame) -> bytes:
        raw = right(frame)
        heard.append(raw)
        return raw

    with Peer(gpuhost, answering(keep)) as peer:
        job = clinic.job(peer.address, run={"deadline_s": 1.0}, codec=PLAIN)
        outcome = splitlearn("trusted", "train", job)
    assert "awaited output of step 1" in outcome.error
    (part,) = tensors.decode(frames.decode(heard[0]).payload)
    decoded_ND = build("identity").decode((part,), rows=part.shape[0], width=WIDTH)
    assert torch.equal(decoded_ND, torch.full(part.shape, 0.25))

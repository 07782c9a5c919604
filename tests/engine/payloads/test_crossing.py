"""A decoder's rows on the link, with those of its encoder: what goes, what the gate is told, who lies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from splitlearn.audit import Payload, read_records
from splitlearn.channel import pair
from splitlearn.engine.payloads.crossing import Target, above_of, crosses, memory_of, take_apart
from splitlearn.engine.payloads.weights import keep
from splitlearn.engine.trusted.generation import Sampling
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import (
    ManifestError,
    RefusedError,
    SessionError,
    SplitLearnError,
    WireError,
)
from splitlearn.policy import STEP_KINDS
from splitlearn.roles import Kind
from splitlearn.split import cache
from splitlearn.split.cut import Cut
from splitlearn.split.stage import RemoteStage
from splitlearn.wire.messages import Detail, Memory, SideSpec, StepTensor
from tests.crossed import crossed_model, crossed_steps
from tests.engine.compute.test_engine import Desk, desk_at, payload, rows, step
from tests.rig import (
    Result,
    batch_of,
    run_in_memory,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_batch, tiny_model

CUT = Cut(1, 3)
# Two texts of 4 and 2 tokens in the memory, of 3 and 2 in the decoder.
BESIDE = Memory(4, (4, 2))


@pytest.mark.parametrize("model_type", ["bart", "marian"])
def test_a_target_is_read_as_the_model_reads_it(model_type: str) -> None:
    model = crossed_model(model_type)
    batch = batch_of(tiny_batch(model))
    start = model.config.decoder_start_token_id
    target = Target.of(batch, start=start)
    read = model.prepare_decoder_input_ids_from_labels(batch.labels["labels"])
    assert target.lengths == (4, 6, 6)
    real = torch.arange(6) < torch.tensor(target.lengths)[:, None]
    assert torch.equal(target.ids_BU[real], read[real])
    assert not target.ids_BU[~real].any()


def test_a_token_that_is_not_asked_for_in_the_middle_is_read_all_the_same() -> None:
    batch = replace(
        batch_of(tiny_batch(crossed_model("bart"), lengths=(5,))),
        labels={"labels": torch.tensor([[7, -100, 9, -100]])},
    )
    target = Target.of(batch, start=2)
    assert target.lengths == (3,)
    assert target.ids_BU.tolist() == [[2, 7, 0, 0]]


def test_only_a_decoder_that_has_an_encoder_crosses() -> None:
    assert crosses(trusted_run(crossed_model("marian"), cut=CUT, total=1).offer)
    assert not crosses(trusted_run(tiny_model("marian"), cut=CUT, total=1).offer)
    assert not crosses(trusted_run(tiny_model("gpt2"), cut=CUT, total=1).offer)


def sent(result: Result) -> dict[Kind, tuple[int, tuple[str, ...]]]:
    """Rows of the first message of each kind, and its fields, as our own log has them."""
    found: dict[Kind, tuple[int, tuple[str, ...]]] = {}
    for _, record in read_records(result.trusted.folder / "audit"):
        if isinstance(record, Payload) and record.kind in STEP_KINDS:
            found.setdefault(record.kind, (record.parts[0].shape[0], record.side))
    return found


@pytest.mark.parametrize(
    ("cut", "mode", "train_bottom", "expected"),
    [
        (CUT, "full", True, {"gradient": 34, "input_gradient": 34}),
        (Cut(1, 4), "full", True, {"gradient": 16, "input_gradient": 34}),
        (CUT, "full", False, {"gradient": 16}),
        (CUT, "features", False, {}),
    ],
    ids=["layers above", "none above", "frozen below", "features"],
)
def test_rows_of_the_encoder_go_along_where_they_are_of_use_and_the_log_says_so(
    tmp_path: Path, cut: Cut, mode: str, train_bottom: bool, expected: Mapping[str, int]
) -> None:
    model = crossed_model("bart")
    run = trusted_run(model, cut=cut, total=1, mode=mode, train_bottom=train_bottom)  # type: ignore[arg-type]
    result = run_in_memory(tmp_path, run, steps=crossed_steps(model, micro=1))
    found = sent(result)
    # 18 tokens of texts and 16 of targets.
    assert {kind.value: count for kind, (count, _) in found.items()} == {
        "activation": 34,
        "output": 16,
        **expected,
    }
    for count, side in found.values():
        assert ("memory" in side) is (count == 34)
    assert result.engine.rows["train"] == 34


class Leaking(RemoteStage):
    """A stage that was tampered with: one column of what leaves is something else."""

    def __init__(self, column: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.column = column

    def forward(self, h_BUD: Tensor, *_: object, **__: object) -> Tensor:
        h_BUD = h_BUD.clone()
        with torch.no_grad():
            h_BUD[..., 5] = self.column(h_BUD)
        return self.exchange(h_BUD)


def tampered(run: TrustedRun, column: Callable[[Tensor], Tensor]) -> TrustedRun:
    layers = run.local.model.decoder.layers
    place = next(i for i, layer in enumerate(layers) if isinstance(layer, RemoteStage))
    layers[place] = Leaking(column)
    return run


@pytest.mark.parametrize(
    ("what", "rule"),
    [
        (lambda ids, labels: ids * 0.37 - 4.1, "content.ids"),
        (lambda ids, labels: ids.float(), "content.whole"),
        (lambda ids, labels: labels.clamp(min=0).float(), "content.whole"),
    ],
    ids=["scaled ids", "ids", "labels"],
)
def test_ids_of_the_target_do_not_leave_among_a_decoders_rows(
    tmp_path: Path, what: Callable[[Tensor, Tensor], Tensor], rule: str
) -> None:
    model = crossed_model("bart")
    steps = crossed_steps(model, micro=1)
    (batch,) = steps(0)
    ids_BU = Target.of(batch, start=2).ids_BU
    column = what(ids_BU, batch.labels["labels"])
    run = tampered(trusted_run(model, cut=CUT, total=1), lambda _: column)
    with pytest.raises(RefusedError) as refused:
        run_in_memory(tmp_path, run, steps=steps)
    assert refused.value.rule == rule


def test_ids_of_the_text_do_not_leave_among_the_encoders_rows(tmp_path: Path) -> None:
    model = crossed_model("bart")
    steps = crossed_steps(model, micro=1)
    run = trusted_run(model, cut=CUT, total=1)
    (batch,) = steps(0)

    def leak(_: object, __: object, h_BSD: Tensor) -> Tensor:
        h_BSD = h_BSD.clone()
        h_BSD[..., 3] = batch.inputs["input_ids"] * 0.01 + 2.5
        return h_BSD

    run.local.model.encoder.layers[1].register_forward_hook(leak)
    with pytest.raises(RefusedError) as refused:
        run_in_memory(tmp_path, run, steps=steps)
    assert refused.value.rule == "content.ids"


# Who lies


def crossing(**changes: Any) -> StepTensor:
    return msgspec.structs.replace(step(), **({"memory": BESIDE} | changes))


@pytest.fixture
def ready(tmp_path: Path) -> tuple[Desk, TrustedRun]:
    """A compute party that holds a decoder's layers already, and the run that they are of."""
    desk = desk_at(tmp_path)
    run = trusted_run(crossed_model("bart"), cut=CUT, total=2)
    keep(desk.place.received, run.groups["layers"], name=run.offer.layers)
    return desk, run


@pytest.mark.parametrize(
    ("meta", "count", "error", "sentence"),
    [
        (crossing(memory=None), 5, WireError, "without a memory"),
        (crossing(), 10, WireError, "10"),
        (crossing(), 5, WireError, "5"),
        (crossing(memory=Memory(3, (4, 2))), 11, WireError, "padded to 3"),
        (crossing(memory=Memory(4, (4,))), 9, SessionError, "memory of 1 texts beside 2"),
        (crossing(memory=Memory(4, (4, 2, 1))), 12, SessionError, "memory of 3 texts beside 2"),
        (crossing(memory=Memory(131_072, (4, 2))), 11, WireError, "at most"),
        (crossing(packed=False), 14, SessionError, "padding never travels"),
        (crossing(phase="generate"), 11, SessionError, "generate"),
    ],
    ids=[
        *("missing", "a row too few", "the memory's rows missing", "longer than its width"),
        *("a text too few", "a text too many", "memory nobody sent", "padding", "going on"),
    ],
)
def test_a_memory_that_does_not_add_up_is_refused_before_a_sum(
    ready: tuple[Desk, TrustedRun],
    meta: StepTensor,
    count: int,
    error: type[SplitLearnError],
    sentence: str,
) -> None:
    desk, run = ready
    desk.agree(run.offer)
    desk.say(Kind.ACTIVATION, meta, payload(rows(count)))
    assert desk.fails(error, sentence) == [Kind.ACCEPT, Kind.READY]


def test_a_memory_for_a_trunk_that_has_none_is_refused(tmp_path: Path) -> None:
    desk = desk_at(tmp_path)
    run = trusted_run(tiny_model("bart"), cut=CUT, total=2)
    keep(desk.place.received, run.groups["layers"], name=run.offer.layers)
    desk.agree(run.offer)
    desk.say(Kind.ACTIVATION, crossing(), payload(rows(11)))
    assert desk.fails(WireError, "with a memory; .* take none") == [Kind.ACCEPT, Kind.READY]


@pytest.mark.parametrize(
    ("memory", "count", "trains", "error", "sentence"),
    [
        (Memory(4, ()), 11, False, WireError, "gradients by a memory travel: False"),
        (Memory(5, ()), 11, True, WireError, "padded to 5; .* padded to 4"),
        (Memory(4, (4, 2)), 11, True, SessionError, "memory of 2 texts beside 0"),
        (Memory(4, ()), 5, True, WireError, "5"),
        (None, 11, True, WireError, "11"),
    ],
    ids=["not agreed on", "another width", "lengths again", "rows missing", "rows too many"],
)
def test_a_gradient_by_a_memory_that_does_not_add_up_is_refused(
    ready: tuple[Desk, TrustedRun],
    memory: Memory | None,
    count: int,
    trains: bool,
    error: type[SplitLearnError],
    sentence: str,
) -> None:
    desk, run = ready
    desk.agree(msgspec.structs.replace(run.offer, detail=Detail(memory_trains=trains)))
    desk.say(Kind.ACTIVATION, crossing(), payload(rows(11)))
    desk.say(Kind.GRADIENT, crossing(lengths=(), memory=memory), payload(rows(count)))
    assert desk.fails(error, sentence) == [Kind.ACCEPT, Kind.READY, Kind.OUTPUT]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mode": "side", "detail": Detail(side=SideSpec((1,), 4))}, "in mode side"),
        ({"returns_input_gradient": False}, "or none by its input"),
    ],
    ids=["beside", "no gradient by its input"],
)
def test_an_offer_that_a_decoders_trunk_is_not_for_is_refused_before_an_answer(
    ready: tuple[Desk, TrustedRun], changes: dict[str, Any], sentence: str
) -> None:
    desk, run = ready
    desk.say(Kind.OFFER, msgspec.structs.replace(run.offer, **changes))
    assert desk.fails(WireError, sentence) == []


def test_gradients_by_a_memory_are_not_offered_of_other_trunks(tmp_path: Path) -> None:
    desk = desk_at(tmp_path)
    offer = trusted_run(tiny_model("bert"), cut=CUT, total=2).offer
    desk.say(Kind.OFFER, msgspec.structs.replace(offer, detail=Detail(memory_trains=True)))
    assert desk.fails(WireError, "where there is none") == []


def test_a_codec_that_keeps_rows_by_sample_is_not_for_rows_of_two_texts(
    ready: tuple[Desk, TrustedRun],
) -> None:
    desk, run = ready
    codecs = msgspec.structs.replace(run.offer.codecs, activation="delta-int4")
    desk.agree(msgspec.structs.replace(run.offer, codecs=codecs))
    desk.fails(WireError, "for rows of one text each")


def test_an_answer_with_a_memory_that_was_not_asked_for_is_refused_at_home(tmp_path: Path) -> None:
    model = crossed_model("bart")
    run = trusted_run(model, cut=CUT, total=1, train_bottom=False)
    # At home nothing below trains, and the peer was told otherwise: it gives back more than is wanted.
    lied = msgspec.structs.replace(
        run.offer, returns_input_gradient=True, detail=Detail(memory_trains=True)
    )
    with pytest.raises(WireError, match="comes with rows of a memory; agreed on is without"):
        run_in_memory(tmp_path, replace(run, offer=lied), steps=crossed_steps(model, micro=1))


def test_what_is_taken_apart_is_fresh_and_padded() -> None:
    both_ND = torch.arange(11.0).repeat(32, 1).T
    beside, x_BUD = take_apart(both_ND, crossing())
    assert beside.h_BSD[..., 0].tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
    assert x_BUD[..., 0].tolist() == [[6, 7, 8], [9, 10, 0]]
    assert beside.h_BSD.is_contiguous()
    assert not np.shares_memory(beside.h_BSD.numpy(), both_ND.numpy())


def test_a_memory_is_asked_for_by_the_layers_and_not_by_the_message() -> None:
    assert memory_of(crossing(), agreed=True) == BESIDE
    assert memory_of(step(), agreed=False) is None
    assert above_of(crossing(lengths=(), memory=None), crossing(), trains=True) is False
    assert above_of(crossing(lengths=(), memory=Memory(4, ())), crossing(), trains=True)


# Where texts are gone on with


def begun(**changes: Any) -> StepTensor:
    """The first tokens of two texts, with their memory."""
    texts = {"phase": "generate", "packed": False, "width": 1, "lengths": (1, 1)}
    return crossing(**(texts | changes))


NEXT = {"lengths": (2, 2), "memory": None}


@pytest.mark.parametrize(
    ("meta", "count", "error", "sentence"),
    [
        (begun(memory=None), 2, WireError, "without a memory; .* take one there"),
        (begun(), 2, WireError, r"F32 and shape \(8, 32\)"),
        (begun(memory=Memory(3, (4, 2))), 8, WireError, "padded to 3"),
        (begun(memory=Memory(131_072, (4, 2))), 8, WireError, "at most"),
        (begun(packed=True), 8, SessionError, "padding never travels"),
        (begun(lengths=(2, 2), width=1), 8, SessionError, "only their first has one"),
        (begun(**NEXT), 2, SessionError, "0 texts of 0 tokens were there"),
    ],
    ids=["missing", "rows missing", "narrow", "nobody sent", "packed", "late", "no beginning"],
)
def test_a_text_that_begins_otherwise_than_with_its_memory_is_refused(
    ready: tuple[Desk, TrustedRun],
    meta: StepTensor,
    count: int,
    error: type[SplitLearnError],
    sentence: str,
) -> None:
    desk, run = ready
    desk.agree(msgspec.structs.replace(run.offer, purpose="generate"))
    desk.say(Kind.ACTIVATION, meta, payload(rows(count)))
    assert desk.fails(error, sentence) == [Kind.ACCEPT, Kind.READY]


@pytest.mark.parametrize(
    ("changes", "count", "error", "sentence"),
    [
        ({**NEXT, "memory": BESIDE}, 8, SessionError, "only their first has one"),
        (NEXT, 8, WireError, r"F32 and shape \(2, 32\)"),
        ({**NEXT, "lengths": (3, 3)}, 2, SessionError, "2 texts of 1 tokens were there"),
        (
            {"memory": None, "lengths": (5, 5), "width": 4},
            8,
            WireError,
            "fewer or shorter texts fit",
        ),
    ],
    ids=["a memory again", "rows of one", "a token left out", "more than is kept"],
)
def test_tokens_after_the_first_are_their_own_rows_and_no_more_than_are_kept(
    ready: tuple[Desk, TrustedRun],
    changes: dict[str, Any],
    count: int,
    error: type[SplitLearnError],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two layers' keys and values of 8 tokens of two texts, and the memory of four tokens itself.
    monkeypatch.setattr(cache, "MAX_CACHE_BYTES", 2 * 4 * 2 * 32 * 2 * 8 + 4 * 32 * 2 * 4)
    desk, run = ready
    desk.engine._overlap = False  # it answers before it hears the next one
    desk.agree(msgspec.structs.replace(run.offer, purpose="generate"))
    desk.say(Kind.ACTIVATION, begun(), payload(rows(8)))
    desk.say(Kind.ACTIVATION, begun(**changes), payload(rows(count)))
    assert desk.fails(error, sentence) == [Kind.ACCEPT, Kind.READY, Kind.OUTPUT]


def test_no_text_is_said_beside_an_evaluation_by_a_remote_decoder(tmp_path: Path) -> None:
    run = trusted_run(crossed_model("bart"), cut=CUT, total=1)
    engine = trusted_engine(run, trusted_party(tmp_path), pair()[0])
    with pytest.raises(ManifestError, match="ask for it in a run offered to generate"):
        engine.evaluate([], saying=Sampling(tokens=2))

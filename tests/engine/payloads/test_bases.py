from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.audit import RunOpen
from splitlearn.channel import pair
from splitlearn.codecs import Identity
from splitlearn.codecs.transform import Transform
from splitlearn.engine.job.prepare import Prepared, prepare
from splitlearn.engine.payloads.bases import codecs_of, expected_bases, state_of
from splitlearn.errors import IdentityError, SplitLearnError, WireError
from splitlearn.manifest import load_job
from splitlearn.roles import Kind
from splitlearn.split import PcaBasis, digest
from splitlearn.wire.messages import CodecSpec, Offer
from tests.door import offer, records
from tests.jobs import make_job
from tests.rig import (
    ComputeThread,
    compute_party,
    run_in_memory,
    trusted_engine,
    trusted_party,
)

BASES = {
    kind: PcaBasis(torch.zeros(8), torch.eye(8), kept=1.0)
    for kind in (Kind.ACTIVATION, Kind.OUTPUT)
}


def offer_of(activation: str, output: str = "fp16", gradient: str = "fp16") -> Offer:
    return msgspec.structs.replace(offer(), codecs=CodecSpec(activation, output, gradient, "fp16"))


def test_bases_are_named_by_kind_and_come_back_in_the_codecs() -> None:
    state = state_of(BASES)
    assert sorted(state) == [
        *("activation.mean", "activation.vectors", "output.mean", "output.vectors"),
    ]
    names = {"activation": "pca-transform-e0.1", "output": "pca-0.5", "gradient": "identity"}
    codecs = codecs_of({**names, "input_gradient": "fp16"}, state)
    assert isinstance(codecs[Kind.ACTIVATION], Transform)
    assert isinstance(codecs[Kind.GRADIENT], Identity)
    parts = codecs[Kind.OUTPUT].encode(torch.ones(2, 8))
    assert codecs[Kind.OUTPUT].decode(parts, rows=2, width=8)[0].tolist() == [1.0] * 4 + [0.0] * 4


def test_an_offer_says_which_bases_it_takes() -> None:
    assert expected_bases(offer_of("int8+zstd"), width=8) == {}
    found = expected_bases(offer_of("fp16", "pca-transform-b9"), width=8)
    assert {name: tuple(t.shape) for name, t in found.items()} == {
        "output.mean": (8,),
        "output.vectors": (8, 8),
    }
    assert [t.dtype for t in found.values()] == [torch.float32, torch.float16]


def test_a_basis_of_halves_loses_next_to_nothing() -> None:
    torch.manual_seed(0)
    vectors, _ = torch.linalg.qr(torch.randn(64, 64))
    basis = PcaBasis(torch.full((64,), 1e5), vectors, kept=1.0)
    names = {"activation": "fp16", "output": "pca-1", "gradient": "fp16", "input_gradient": "fp16"}
    codec = codecs_of(names, state_of({Kind.OUTPUT: basis}))[Kind.OUTPUT]
    x_ND = 1e5 + torch.randn(20, 64)
    y_ND = codec.decode(codec.encode(x_ND), rows=20, width=64)
    assert 0 < float((y_ND - x_ND).norm() / (x_ND - 1e5).norm()) < 0.02  # float32 at 1e5 is coarse


@pytest.mark.parametrize(
    "wrong",
    [
        *(offer_of("zip"), offer_of("fp16", gradient="pca-0.5"), offer_of("pca-7")),
        offer_of("delta-int4", gradient="delta-int4"),
    ],
)
def test_an_offer_of_codecs_that_there_are_not_is_refused(wrong: Offer) -> None:
    with pytest.raises(WireError):
        expected_bases(wrong, width=8)


def test_a_codec_in_a_basis_without_one_is_refused() -> None:
    names = dict.fromkeys(("output", "gradient", "input_gradient"), "fp16")
    with pytest.raises(WireError, match="have none"):
        codecs_of({**names, "activation": "pca-0.5"}, {})


def prepared(folder: Path, public_text: str | None = "public.txt") -> Prepared:
    codec = {
        "activation": "pca-transform-e0.05",
        "output": "pca-transform-e0.05",
        "gradient": "transform-e0.05",
        "public_text": public_text,
    }
    return prepare(load_job(make_job(folder, changes={"codec": codec})))


def test_a_run_in_bases_trains_and_both_logs_name_their_digest(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    assert found.run.offer.bases == digest(found.run.groups["bases"])
    result = run_in_memory(tmp_path / "parties", found.run, steps=found.data.steps)
    assert len(result.losses) == 3
    for party in (result.trusted, result.compute):
        opened = [r for r in records(party.log.folder) if isinstance(r, RunOpen)]
        assert {record.codec_bases for record in opened} == {found.run.offer.bases}


def test_the_bases_of_the_same_public_text_are_the_same(tmp_path: Path) -> None:
    one, two = (prepared(tmp_path / name).run.offer.bases for name in ("a", "b"))
    assert one == two != digest({})


def test_bases_other_than_offered_stop_the_run(tmp_path: Path) -> None:
    found = prepared(tmp_path)
    state = found.run.groups["bases"]
    state["output.mean"] = state["output.mean"] + 1e-6
    ours, theirs = pair()
    thread = ComputeThread(compute_party(tmp_path / "parties"), theirs)
    engine = trusted_engine(found.run, trusted_party(tmp_path / "parties"), ours)
    with pytest.raises(SplitLearnError):
        engine.train(found.data.steps)
    thread.join(20)
    assert isinstance(thread.error, IdentityError)
    assert "bases weights" in str(thread.error)
    assert not list((tmp_path / "parties").rglob(f"{found.run.offer.bases}*"))

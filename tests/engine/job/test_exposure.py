"""What a job gives away, measured as a peer would: high where it must be, and never by cheating."""

from pathlib import Path

import pytest
import torch

from splitlearn.engine.job.exposure import (
    MIN_TEXTS,
    Exposure,
    encode_lines,
    known_of,
    preflight,
    publics_of,
    rows_of,
)
from splitlearn.engine.job.prepare import Prepared, prepare
from splitlearn.engine.trusted.flight import Flight
from splitlearn.errors import ManifestError
from splitlearn.leakage import Budget
from splitlearn.manifest import load_job
from splitlearn.split.rows import pack
from tests.jobs import PAIRS, Changes, make_job, public_lines

QUICK = Budget.quick()


def prepared(folder: Path, changes: Changes | None = None) -> Prepared:
    return prepare(load_job(make_job(folder, changes=changes)))


def measure(folder: Path, changes: Changes | None = None) -> Exposure:
    return preflight(prepared(folder, changes), public_lines(120), max_length=32, budget=QUICK)


def test_a_full_width_cut_of_a_public_model_gives_the_text_away(tmp_path: Path) -> None:
    found = measure(tmp_path, {"cut": {"mode": "features", "bottom": 1}})
    assert found.text.best.top1 > 0.9
    assert max(one.top1 for one in found.text.baselines) < 0.5
    assert found.labels is None  # no gradient leaves


def test_gradients_give_the_labels_away(tmp_path: Path) -> None:
    found = measure(tmp_path, {"cut": {"mode": "full"}})
    assert found.labels is not None
    assert found.labels.best.auc is not None
    assert found.labels.best.auc > 0.95


def test_noise_of_the_job_is_in_what_is_attacked(tmp_path: Path) -> None:
    noisy = {"gradient_clip": 0.7, "gradient_noise": 50.0}
    found = measure(tmp_path, {"cut": {"mode": "full"}, "privacy": noisy})
    assert found.labels is not None
    assert found.labels.best.auc is not None
    assert found.labels.best.auc < 0.95


def test_the_rows_attacked_are_those_that_the_engine_sends(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    publics = publics_of(made, max_length=32)
    texts = encode_lines(publics, public_lines(3))
    rows = rows_of(publics, texts)
    (batch,) = made.data.steps(0)[:1]
    ids = tuple(
        tuple(row[:n].tolist())
        for row, n in zip(batch.inputs["input_ids"], batch.lengths, strict=True)
    )
    made.model.train(mode=False)
    with torch.no_grad():
        flight = Flight(made.model, inputs=batch.inputs)
        sent = pack(flight.to_cut(), lengths=batch.lengths)
    codec = publics.codec
    decoded = codec.decode(codec.encode(sent), rows=len(sent), width=sent.shape[1])
    assert torch.equal(rows_of(publics, ids), decoded)
    assert rows.shape == (sum(map(len, texts)), sent.shape[1])


def test_an_attacker_widens_what_a_low_rank_cut_narrowed(tmp_path: Path) -> None:
    lower = {"method": "pca", "rank": 8, "public_text": "public.txt"}
    made = prepared(tmp_path, {"cut.lower": lower})
    publics = publics_of(made, max_length=32)
    known = known_of(publics, encode_lines(publics, public_lines(3)))
    rows = rows_of(publics, known.text)
    assert rows.shape[1] == 8
    assert known.expand(rows).shape == (len(rows), made.model.config.hidden_size)


def test_measuring_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    made = prepared(tmp_path, {"cut": {"mode": "full"}})
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    made.model.train()
    preflight(made, public_lines(60), max_length=32, budget=QUICK)
    assert all(torch.equal(t, before[n]) for n, t in made.model.state_dict().items())
    assert all(p.grad is None for p in made.model.parameters())


@pytest.mark.parametrize("lines", [[], ["one text"] * 500], ids=["none", "one again and again"])
def test_too_little_public_text_is_refused(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(ManifestError, match=f"need {MIN_TEXTS} at least"):
        preflight(prepared(tmp_path), lines, max_length=32, budget=QUICK)


def test_no_private_text_or_label_is_looked_at(tmp_path: Path) -> None:
    """The same figures whatever the private data say."""
    one = measure(tmp_path / "one", {"cut": {"mode": "full"}})
    train = tmp_path / "other" / "train.jsonl"
    job = make_job(tmp_path / "other", changes={"cut": {"mode": "full"}})
    rows = train.read_text().splitlines()
    train.write_text("\n".join(reversed(rows)) + "\n")
    other = preflight(prepare(load_job(job)), public_lines(120), max_length=32, budget=QUICK)
    assert one.text.best.top1 == other.text.best.top1
    assert one.labels is not None
    assert other.labels is not None
    assert one.labels.best.auc == other.labels.best.auc


CHAIN: Changes = {"[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 2}}


def test_a_chain_is_attacked_at_its_outer_ends_as_one_party_would_be(tmp_path: Path) -> None:
    codec = {"activation": "identity", "gradient": "identity"}
    changes: Changes = {"cut": {"mode": "full"}, "codec": codec}
    alone = measure(tmp_path / "alone", changes)
    chained = measure(tmp_path / "chain", {**changes, **CHAIN})
    assert chained.text.best.top1 == alone.text.best.top1
    assert chained.labels is not None
    assert alone.labels is not None
    assert chained.labels.best.auc == alone.labels.best.auc


def test_rows_of_a_decoder_are_not_attacked_as_if_they_were_an_encoders(tmp_path: Path) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 2}}
    made = prepare(load_job(make_job(tmp_path, changes=changes, family="bart")))
    with pytest.raises(ManifestError, match="no attack here knows a decoder's rows yet"):
        preflight(made, public_lines(60), max_length=32, budget=QUICK)

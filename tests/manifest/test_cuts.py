"""Modes and what belongs to them. tests/manifest/test_job.py has where a model is cut."""

from pathlib import Path
from typing import Any

import pytest

from splitlearn.errors import ManifestError
from tests.manifest.test_hops import FARM, chained
from tests.manifest.test_job import job

SIDE: dict[str, Any] = {"mode": "side", "side": {"public_text": "public.txt"}}
LOWRANK = {"activation": "lowrank-8"}


def test_outputs_are_kept_in_mode_side_and_where_asked(tmp_path: Path) -> None:
    assert job(tmp_path, cut=SIDE).cut.keeps_outputs
    assert not job(tmp_path, cut={**SIDE, "cache": False}).cut.keeps_outputs
    assert not job(tmp_path).cut.keeps_outputs
    assert job(tmp_path, cut={"cache": True}).cut.keeps_outputs
    assert not job(tmp_path, cut={"mode": "full"}).cut.keeps_outputs


def test_columns_of_what_comes_back(tmp_path: Path) -> None:
    assert job(tmp_path, cut=SIDE).cut.exit_rank == 4 * 32
    upper = {"method": "sft", "rank": 8}
    assert job(tmp_path, cut={"upper": upper}).cut.exit_rank == 8
    assert job(tmp_path).cut.exit_rank == 0


def test_what_is_kept_and_tapped_decides_the_digest(tmp_path: Path) -> None:
    plain, side = job(tmp_path).digest(), job(tmp_path, cut=SIDE).digest()
    assert job(tmp_path, cut={"cache": False}).digest() == plain
    assert job(tmp_path, cut={"cache": True}).digest() != plain
    assert job(tmp_path, cut={**SIDE, "cache": False}).digest() != side
    ranked = {**SIDE, "side": {**SIDE["side"], "rank": 8}}
    assert job(tmp_path, cut=ranked).digest() != side


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cut": {"mode": "side"}}, "cut.side.public_text is missing"),
        ({"cut": {"side": {"rank": 4}}}, 'cut.side has no use in mode "features"'),
        ({"cut": {**SIDE, "train_bottom": True}}, 'train_bottom is true, but in mode "side"'),
        (
            {"cut": {**SIDE, "upper": {"method": "sft", "rank": 4}}},
            'cut.upper.method is sft, and in mode "side" the taps',
        ),
        ({"cut": {**SIDE, "side": {"public_text": "public.txt", "width": 40}}}, "cut.side.width"),
        ({"cut": {"mode": "full", "cache": True}}, 'cut.cache is true, but in mode "full"'),
        ({"cut": SIDE, "codec": LOWRANK}, "codec.activation is lowrank-8, which remembers"),
        (
            {"cut": SIDE, "codec": {"activation": "delta-int4"}},
            "codec.activation is delta-int4, which remembers",
        ),
        (
            {"cut": SIDE, "codec": {"output": "pca-0.5", "public_text": "public.txt"}},
            "codec.output is pca-0.5, and what a low-rank cut sends has no basis",
        ),
        ({"cut": {"cache": True}, "schedule": {"staleness": 1}}, "schedule.staleness is 1"),
        (
            {"cut": {"mode": "lora"}, "privacy": {"gradient_noise": 1.0}},
            "without privacy.gradient_clip",
        ),
        (
            {"cut": SIDE, "privacy": {"gradient_noise": 1.0, "gradient_clip": 1.0}},
            'gradient_noise has no use in cut.mode "side"',
        ),
    ],
)
def test_what_does_not_go_together_is_told(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        job(tmp_path, **changes)
    assert told in str(caught.value)


@pytest.mark.parametrize(("cut", "key"), [(SIDE, "cut.mode"), ({"cache": True}, "cut.cache")])
def test_a_chain_has_no_place_for_either(tmp_path: Path, cut: dict[str, Any], key: str) -> None:
    with pytest.raises(ManifestError, match=f"{key} is for one compute party"):
        chained(tmp_path, FARM, cut={"bottom": 2, **cut})


PAIRED: dict[str, Any] = {
    "model": {"task": "sequence-to-sequence"},
    "data": {"label": None, "target": "said"},
    "cut": {"stack": "decoder"},
}


def test_which_stack_is_cut_decides_the_digest_and_the_encoder_needs_no_word(
    tmp_path: Path,
) -> None:
    plain = job(tmp_path, **{**PAIRED, "cut": {}})
    assert plain.cut.stack == "encoder"
    assert job(tmp_path, **{**PAIRED, "cut": {"stack": "encoder"}}).digest() == plain.digest()
    assert job(tmp_path, **PAIRED).digest() != plain.digest()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {}, "data": {}}, "cut.stack is decoder, which models of task sequence-to-seq"),
        ({"cut": {"stack": "upper"}}, "cut.stack"),
        ({"cut": {"stack": "both"}}, "cut.stack is both, which takes two parties; add a [[chain]]"),
        (
            {"cut": {"stack": "decoder", "upper": {"method": "sft", "rank": 4}}},
            "cut.upper.method is sft, and no cut narrows the rows of an encoder below a decoder",
        ),
        ({"cut": {"stack": "decoder", **SIDE}}, "cut.mode is for one text a row"),
        ({"cut": {"stack": "decoder", "cache": True}}, "cut.cache is for one text a row"),
        ({"codec": {"activation": "delta-int4"}}, "codec.activation is delta-int4, which is for"),
        (
            {"codec": {"output": "pca-0.5", "public_text": "public.txt"}},
            "codec.output is pca-0.5, which is for rows of one text",
        ),
        ({"schedule": {"staleness": 1}}, "schedule.staleness is 1, and gradients of an encoder"),
        ({"canary": {"file": "train.tsv"}}, "canary.file has a use where frames can be attacked"),
    ],
)
def test_what_a_decoders_layers_do_not_go_together_with_is_told(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        job(tmp_path, **{**PAIRED, **changes})
    assert told in str(caught.value)

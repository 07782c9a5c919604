"""Bases of public text: which of them a job asks for, and what its file has to be."""

from pathlib import Path

import pytest
import torch

from splitlearn.engine.job.examples import data_of
from splitlearn.engine.job.public import codec_bases, codec_basis, cut_bases, tapped_bases
from splitlearn.errors import ManifestError
from splitlearn.manifest import load_job
from splitlearn.roles import Kind
from splitlearn.split import Bottleneck, Cut
from splitlearn.wire.messages import SideSpec
from tests.jobs import Changes, make_job

PCA = {"method": "pca", "rank": 4, "public_text": "public.txt"}
CODEC = {"activation": "pca-0.5", "output": "fp16", "public_text": "public.txt"}
SIDE: Changes = {
    "cut": {"mode": "side"},
    "cut.side": {"rank": 6, "width": 32, "public_text": "public.txt"},
}


def test_a_low_rank_cut_and_a_codec_get_theirs_and_no_others(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes={"cut.upper": PCA, "codec": CODEC}))
    data, model = data_of(job)
    cut = Cut(1, 3, upper=Bottleneck("pca", 4))
    bases = dict(cut_bases(job, model, cut, data.tokenizer))
    assert {where: basis.components.shape for where, basis in bases.items()} == {"upper": (4, 32)}
    found = dict(codec_bases(job, model, cut, data.tokenizer))
    assert {kind: basis.components.shape for kind, basis in found.items()} == {
        Kind.ACTIVATION: (32, 32)
    }
    alone = codec_basis(job, model, data.tokenizer, layer=1)
    assert alone is not None
    assert torch.equal(alone.components, found[Kind.ACTIVATION].components)


def test_each_tapped_layer_gets_one(tmp_path: Path) -> None:
    job = load_job(make_job(tmp_path, changes=SIDE))
    data, model = data_of(job)
    found = dict(tapped_bases(job, model, SideSpec((1, 2), 6), data.tokenizer))
    assert {layer: basis.components.shape for layer, basis in found.items()} == {
        1: (6, 32),
        2: (6, 32),
    }
    assert not torch.equal(found[1].components, found[2].components)
    with pytest.raises(ManifestError, match=r"cut\.side\.rank is 33, more than the model's width"):
        dict(tapped_bases(job, model, SideSpec((1, 2), 33), data.tokenizer))
    (tmp_path / "public.txt").write_text("\n")
    with pytest.raises(ManifestError, match=r"cut\.side\.public_text has no text in it"):
        dict(tapped_bases(job, model, SideSpec((1, 2), 6), data.tokenizer))

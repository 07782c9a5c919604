import pytest
import torch

from splitlearn.codecs.basis import Basis
from splitlearn.codecs.chain import NAMES, build
from splitlearn.codecs.table import STAGES, VALUES, Figures
from splitlearn.manifest.chains import FAMILIES, chain_of
from splitlearn.wire import tensors

# Hidden states have a few columns that are always large; the rest look like noise.
X_ND = torch.randn(512, 384, generator=torch.Generator().manual_seed(5)) * 0.6
X_ND[:, :2] *= 3.5
BASIS = Basis(torch.zeros(384), torch.eye(384))

# Codecs that follow the content have other figures on noise.
CHAINS = []
for name in NAMES:
    chain = chain_of(name)
    assert chain is not None
    row = VALUES[chain.family]
    figures = row.with_zstd if chain.stage else row.alone
    if not chain.family.startswith(("pca-", "svd-", "lowrank-", "topk-", "randk-", "transform-b")):
        CHAINS.append((name, figures))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_codec_has_the_name_under_which_the_table_holds_it(family: str) -> None:
    number = FAMILIES[family]
    name = family + (number.example if number else "")
    codec = VALUES[family].make(name, number and float(number.example), BASIS)
    assert codec.name == name
    if VALUES[family].with_zstd is not None:
        for stage, row in STAGES.items():
            assert row.wrap(codec).name == f"{name}+{stage}"


@pytest.mark.parametrize(("name", "figures"), CHAINS)
def test_the_tables_figures_hold_for_rows_like_an_encoders(name: str, figures: Figures) -> None:
    codec = build(name)
    parts = codec.encode(X_ND)
    shrinks = X_ND.numel() * 4 / len(tensors.encode(parts))
    y_ND = codec.decode(parts, rows=512, width=384)
    error = float((y_ND - X_ND).norm() / X_ND.norm())
    assert shrinks == pytest.approx(figures.shrinks, rel=0.2)
    assert error == pytest.approx(figures.error, rel=0.45)


def test_every_line_is_one_line() -> None:
    for row in (*VALUES.values(), *STAGES.values()):
        assert row.line
        assert "\n" not in row.line

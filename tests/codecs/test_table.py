import pytest
import torch

from splitlearn.codecs.chain import build
from splitlearn.codecs.table import STAGES, VALUES, Figures
from splitlearn.wire import tensors

# Hidden states have a few columns that are always large; the rest look like noise.
X_ND = torch.randn(512, 384, generator=torch.Generator().manual_seed(5)) * 0.6
X_ND[:, :2] *= 3.5

CHAINS = [(name, row.alone) for name, row in VALUES.items()]
CHAINS += [(f"{name}+zstd", row.with_zstd) for name, row in VALUES.items()]


@pytest.mark.parametrize("name", VALUES)
def test_a_codec_has_the_name_under_which_the_table_holds_it(name: str) -> None:
    assert VALUES[name].make().name == name
    for stage, row in STAGES.items():
        assert row.wrap(VALUES[name].make()).name == f"{name}+{stage}"


@pytest.mark.parametrize(("name", "figures"), CHAINS)
def test_the_tables_figures_hold_for_rows_like_an_encoders(name: str, figures: Figures) -> None:
    codec = build(name)
    parts = codec.encode(X_ND)
    shrinks = X_ND.numel() * 4 / len(tensors.encode(parts))
    y_ND = codec.decode(parts, rows=512, width=384)
    error = float((y_ND - X_ND).norm() / X_ND.norm())
    assert shrinks == pytest.approx(figures.shrinks, rel=0.15)
    assert error == pytest.approx(figures.error, rel=0.4)


def test_every_line_is_one_line() -> None:
    for row in (*VALUES.values(), *STAGES.values()):
        assert row.line
        assert "\n" not in row.line

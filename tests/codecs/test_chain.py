import pytest
import torch

from splitlearn.codecs.basis import Basis
from splitlearn.codecs.chain import NAMES, build
from splitlearn.codecs.table import STAGES, VALUES
from splitlearn.errors import WireError
from splitlearn.manifest.chains import EXAMPLES, FAMILIES
from splitlearn.manifest.chains import STAGES as STAGE_NAMES
from splitlearn.wire import tensors

BASIS = Basis(torch.zeros(12), torch.eye(12))


def test_a_job_may_name_the_chains_there_are_and_no_other() -> None:
    assert NAMES == EXAMPLES
    assert list(VALUES) == list(FAMILIES)
    assert tuple(STAGES) == STAGE_NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_named_chain_takes_rows_through_the_wire_and_back(name: str) -> None:
    codec = build(name, basis=BASIS)
    assert codec.name == name
    x_ND = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    parts = tensors.decode(tensors.encode(codec.encode(x_ND)))
    y_ND = codec.decode(parts, rows=5, width=12)
    assert (y_ND.shape, y_ND.dtype) == (x_ND.shape, torch.float32)
    error = float((y_ND - x_ND).norm() / x_ND.norm())
    assert error < (0.02 if name.startswith(("identity", "fp16", "bf16", "int8")) else 0.999)


@pytest.mark.parametrize("name", NAMES)
def test_every_chain_refuses_every_other_chains_parts(name: str) -> None:
    x_ND = torch.ones(2, 3)
    for other in NAMES:
        mine, theirs = (
            build(each, basis=Basis(torch.zeros(3), torch.eye(3))) for each in (name, other)
        )
        if mine.layout(rows=2, width=3) == theirs.layout(rows=2, width=3):
            continue
        with pytest.raises(WireError):
            mine.decode(theirs.encode(x_ND), rows=2, width=3)


@pytest.mark.parametrize(
    "name",
    ["", "zstd", "int3", "int8+", "+zstd", "int8+zstd+zstd", "zstd+int8", "INT8", "int8 + zstd"],
)
def test_a_name_that_is_no_chain_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(WireError, match="this version has identity, fp16"):
        build(name)

import pytest

from splitlearn.errors import ManifestError
from splitlearn.translation import DecoderShape, EncoderShape, Objective


def test_sizes_out_of_bounds_are_told() -> None:
    with pytest.raises(ManifestError, match="adapter of 0 numbers"):
        EncoderShape(inner=0)
    with pytest.raises(ManifestError, match="reach of 0"):
        DecoderShape(reach=0)
    with pytest.raises(ManifestError, match=r"smoothing of 1\.0"):
        Objective(smoothing=1.0)

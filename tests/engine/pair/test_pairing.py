import pytest

from splitlearn.engine.pair.pairing import Codecs, hashes_of, names_of
from splitlearn.errors import WireError
from splitlearn.wire.samples import hash_of
from tests.pairs import terms


def test_codecs_are_those_of_the_terms() -> None:
    found = Codecs(terms(activation="int8+zstd", gradient="int4-g64"))
    assert (found.rows.name, found.gradient.name) == ("int8+zstd", "int4-g64")


@pytest.mark.parametrize("name", ["pca-0.3", "delta-int4", "lowrank-8", "no-such"])
def test_a_codec_that_needs_more_than_the_message_is_refused(name: str) -> None:
    with pytest.raises(WireError):
        Codecs(terms(gradient=name))


def test_samples_are_in_the_order_of_their_hashes() -> None:
    found = names_of(["a", "b", "c"], naming="7" * 64)
    assert sorted(found) == list(found)
    assert found[hash_of("b", naming="7" * 64)] == "b"
    assert hashes_of(reversed(list(found)), []) == (tuple(found), ())

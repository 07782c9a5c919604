import pytest

from splitlearn.coordination.endings import failure, read_failure
from splitlearn.errors import (
    AuditError,
    ChannelError,
    IdentityError,
    ManifestError,
    PeerError,
    RefusedError,
    SplitLearnError,
)


@pytest.mark.parametrize(
    ("error", "comes_back_as"),
    [
        (ManifestError("mend\nthe file"), ManifestError),
        (RefusedError("no", rule="r"), RefusedError),
        (IdentityError("not ours"), PeerError),
        (ChannelError("away"), ChannelError),
        (AuditError("full"), AuditError),
        (SplitLearnError("odd"), SplitLearnError),
    ],
)
def test_an_error_comes_through_flower_with_its_words_and_its_remedy(
    error: SplitLearnError, comes_back_as: type[SplitLearnError]
) -> None:
    told = read_failure(f"ServerApp failed with exception: {failure(error)}")
    assert type(told) is comes_back_as
    assert told.exit_code == error.exit_code
    assert str(told) == " ".join(str(error).split())


@pytest.mark.parametrize("details", ["", "No heartbeat", "[exit x] y", "KeyError: 'exit 4'"])
def test_an_end_that_is_none_of_ours_is_none(details: str) -> None:
    assert read_failure(details) is None


def test_a_long_sentence_is_cut() -> None:
    told = read_failure(str(failure(ManifestError("x" * 10_000))))
    assert len(str(told)) == 2_000

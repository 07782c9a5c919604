import httpx
import pytest
from flwr.supercore.run import RunNotRunningException

from splitlearn.coordination.flower_faults import FAULTS, explained
from splitlearn.errors import ChannelError


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (httpx.ConnectError("x"), "is splitlearn coordinator up"),
        (httpx.ReadTimeout("x"), "ReadTimeout"),
        (RunNotRunningException(), "was stopped"),
    ],
)
def test_a_fault_of_flowers_becomes_a_sentence(fault: BaseException, told: str) -> None:
    assert isinstance(fault, FAULTS)
    error = explained(fault)
    assert isinstance(error, ChannelError)
    assert told in str(error)


def test_a_mistake_of_ours_is_none_of_them() -> None:
    assert not isinstance(KeyError(), FAULTS)
    assert not isinstance(KeyboardInterrupt(), FAULTS)

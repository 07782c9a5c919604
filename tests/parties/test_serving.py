from types import SimpleNamespace
from typing import Any

import pytest

from parties.serving import serve_runs
from splitlearn.errors import AuditError, ChannelError


class Reach:
    """A line on which one party after the other asks."""

    name = SimpleNamespace(dns="trusted.clinic.fed.example")

    def __init__(self) -> None:
        self.found = 0

    def find_patiently(self, *, run: str) -> int:
        assert run == ""
        self.found += 1
        return self.found


def test_a_run_that_fails_is_told_and_counts_for_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reach, served = Reach(), []

    def serve(channel: Any) -> None:
        served.append(channel)
        if channel == 2:
            raise ChannelError("the link is gone")

    serve_runs(reach, runs=2, serve=serve)  # type: ignore[arg-type]
    assert served == [1, 2, 3]
    told = " ".join("".join(capsys.readouterr()).split())
    assert told.count("waiting for work from trusted.clinic.fed.example") == 3
    assert "run not finished: the link is gone" in told


def test_a_record_in_doubt_ends_all_serving() -> None:
    def serve(_: Any) -> None:
        raise AuditError("the log cannot be written")

    reach = Reach()
    with pytest.raises(AuditError):
        serve_runs(reach, runs=0, serve=serve)  # type: ignore[arg-type]
    assert reach.found == 1

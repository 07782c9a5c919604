import pytest

from splitlearn.coordination import diagnose
from splitlearn.coordination.diagnose import examine_coordinator
from tests.coordination.conftest import Place


def test_a_healthy_node_gets_a_line_for_each_check(place: Place) -> None:
    found = examine_coordinator(place.party("anna").folder, address=place.link.address)
    assert [finding.name for finding in found] == ["port", "coordinator", "coordinator's clock"]
    assert all(finding.ok for finding in found)
    assert "clock here is 0 s" in found[-1].what


def test_a_skewed_clock_is_named_with_the_figure_and_a_remedy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "ask_health", lambda *_, **__: 61.0)
    found = examine_coordinator(place.party("anna").folder, address=place.link.address)
    assert found[-1].exit_code == 4
    assert "61 s ahead of" in found[-1].what
    assert "set the clock" in found[-1].remedy


def test_nothing_is_asked_of_who_is_not_there_or_not_ours(place: Place) -> None:
    (port,) = examine_coordinator(place.party("anna").folder, address="127.0.0.1:1")
    assert (port.ok, port.exit_code) == (False, 5)
    found = examine_coordinator(
        place.party("anna").folder, address=place.link.address, party="another"
    )
    assert [finding.ok for finding in found] == [True, False]
    assert "wrong name" in found[-1].what

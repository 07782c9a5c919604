import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.coordination import health
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.health import AHEAD_S, BEHIND_S, ask_health, check_clock
from splitlearn.errors import ChannelError, IdentityError
from splitlearn.identity import Identity, Registrar, revoke
from splitlearn.identity.denied import adopt
from tests.coordination.conftest import Place
from tests.federation import make_authority, make_identity


def test_a_coordinator_that_would_take_us_tells_how_the_clocks_differ(place: Place) -> None:
    anna = FreshIdentity(place.party("anna").folder)
    assert abs(ask_health(place.link.address, fresh=anna)) < 2.0
    assert abs(ask_health(place.link.address, fresh=anna, party="trainer")) < 2.0


def test_a_clock_that_is_off_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is a thread of this process, so it is our side of the sum that is moved."""
    anna = FreshIdentity(place.party("anna").folder)
    real = health.decode

    def later(data: bytes, *, type: type[health.Health], whose: str) -> health.Health:  # noqa: A002
        told = real(data, type=type, whose=whose)
        return health.Health(time=told.time + 400, party=told.party)

    monkeypatch.setattr(health, "decode", later)
    assert -402 < ask_health(place.link.address, fresh=anna) < -398


@pytest.mark.parametrize("ahead_s", [AHEAD_S, 3600.0, -BEHIND_S, -1e6])
def test_a_skew_outside_flowers_window_is_named_with_its_figure(ahead_s: float) -> None:
    side = "ahead of" if ahead_s > 0 else "behind"
    with pytest.raises(IdentityError, match=f"clock here is {abs(ahead_s):.0f} s {side} the coord"):
        check_clock(ahead_s)


@pytest.mark.parametrize("ahead_s", [0.0, 4.9, -304.0])
def test_a_skew_within_it_is_well(ahead_s: float) -> None:
    assert "the coordinator's" in check_clock(ahead_s)


def test_the_window_is_the_one_that_flower_has() -> None:
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    assert AHEAD_S == SYSTEM_TIME_TOLERANCE
    assert BEHIND_S == SYSTEM_TIME_TOLERANCE + TIMESTAMP_TOLERANCE


def test_who_is_no_coordinator_of_ours_is_refused_before_anything_is_sent(
    place: Place, tmp_path: Path
) -> None:
    """The registrar of the same federation listens with a certificate of the same CA."""
    anna = FreshIdentity(place.party("anna").folder)
    with (
        Registrar(make_authority(place.folder).folder, port=0) as registrar,
        pytest.raises(IdentityError, match="wrong role registrar"),
    ):
        ask_health(registrar.address, fresh=anna)
    with pytest.raises(IdentityError, match="wrong name"):
        ask_health(place.link.address, fresh=anna, party="another")
    stranger = FreshIdentity(make_identity(tmp_path, "anna", "generator").folder)
    with pytest.raises(IdentityError, match="wrong CA"):
        ask_health(place.link.address, fresh=stranger)


def test_a_denied_coordinator_is_refused_by_the_node(place: Place, tmp_path: Path) -> None:
    """Only the node holds the longer list."""
    anna = place.party("zoe")
    authority = make_authority(place.folder)
    before = authority.denied_json
    revoke(authority.folder, party="trainer")
    adopt(anna.folder, data=authority.denied_json, ca=authority.ca, federation="fed.example")
    (authority.folder / "denied.json").write_bytes(before)
    with pytest.raises(IdentityError, match="denied"):
        ask_health(place.link.address, fresh=FreshIdentity(anna.folder))


def test_a_coordinator_that_refuses_us_says_why(place: Place) -> None:
    gpu = FreshIdentity(place.party("gpu", "compute").folder)
    with pytest.raises(IdentityError, match=r"coordinator at .* says: .*wrong role compute"):
        ask_health(place.link.address, fresh=gpu)
    old = expired(place)
    with pytest.raises((IdentityError, ChannelError), match=r"expired|closed the connection"):
        ask_health(place.link.address, fresh=FreshIdentity(old.folder))


def expired(place: Place) -> Identity:
    past = datetime.now(UTC) - timedelta(days=3)
    return make_identity(
        place.folder, "old", "generator", not_before=past, not_after=past + timedelta(days=1)
    )


def test_a_coordinator_that_is_away_is_named(place: Place) -> None:
    began = time.monotonic()
    with pytest.raises(ChannelError, match="refuses connections: nothing listens"):
        ask_health("127.0.0.1:1", fresh=FreshIdentity(place.party("anna").folder))
    assert time.monotonic() - began < 5

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.errors import ChannelError, IdentityError, ManifestError
from splitlearn.identity import (
    Authority,
    Identity,
    Registrar,
    create_federation,
    due_at,
    fetch_denied,
    kept_fresh,
    renew,
    renew_if_due,
    revoke,
)
from splitlearn.roles import Role
from tests.federation import make_identity

NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_federation(tmp_path / "fed", name="fed.example")


@pytest.fixture
def address(authority: Authority) -> Iterator[str]:
    with Registrar(authority.folder, port=0) as registrar:
        yield registrar.address


@pytest.fixture
def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def aged(
    tmp_path: Path, authority: Authority, *, registrar: str | None, left_h: float = 4
) -> Identity:
    """A certificate of 24 hours with `left_h` of them left."""
    return make_identity(
        tmp_path,
        "bank",
        Role.COMPUTE,
        authority=authority,
        registrar=registrar,
        not_before=NOW + timedelta(hours=left_h - 24),
        not_after=NOW + timedelta(hours=left_h),
    )


def test_renewal_gives_a_new_end_to_the_same_name_and_keys(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=address)
    new = renew(old)
    assert new == Identity.load(old.folder)
    assert (new.name, new.log_public) == (old.name, old.log_public)
    assert new.certificate.public_key() == old.certificate.public_key()
    assert new.certificate.not_valid_after_utc > NOW + timedelta(hours=23)


def test_renewal_is_due_at_two_thirds_of_the_life(authority: Authority, tmp_path: Path) -> None:
    young = aged(tmp_path, authority, registrar=None, left_h=24)
    assert abs(due_at(young) - (NOW + timedelta(hours=16))) < timedelta(seconds=2)


def test_before_it_is_due_nobody_is_asked(
    authority: Authority, nobody: str, tmp_path: Path
) -> None:
    young = aged(tmp_path, authority, registrar=nobody, left_h=20)
    assert renew_if_due(young, now=NOW) is young


def test_when_it_is_due_it_is_renewed(authority: Authority, address: str, tmp_path: Path) -> None:
    old = aged(tmp_path, authority, registrar=address)
    assert renew_if_due(old, now=NOW).fingerprint != old.fingerprint


def test_what_another_process_renewed_is_taken_over(
    authority: Authority, nobody: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=nobody)
    fresh = aged(tmp_path, authority, registrar=nobody, left_h=20)
    assert renew_if_due(old, now=NOW) == fresh


@pytest.mark.parametrize("known", [True, False])
def test_without_a_registrar_the_certificate_is_used_while_it_is_good(
    authority: Authority, nobody: str, tmp_path: Path, known: bool
) -> None:
    old = aged(tmp_path, authority, registrar=nobody if known else None)
    assert renew_if_due(old, now=NOW) == old
    with pytest.raises(IdentityError, match=r"expired at .* join again"):
        renew_if_due(old, now=NOW + timedelta(hours=5))


def test_a_registrar_that_says_no_is_obeyed(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=address)
    revoke(authority.folder, party="bank")
    with pytest.raises(IdentityError, match=r"denied"):
        renew_if_due(old, now=NOW)
    assert old.reload() == old


def test_an_expired_certificate_is_not_even_shown(
    authority: Authority, nobody: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=nobody, left_h=-1)
    with pytest.raises(IdentityError, match=r"expired at"):
        renew(old)


def test_a_registrar_of_another_ca_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = create_federation(tmp_path / "other", name="fed.example")
    with Registrar(other.folder, port=0) as wrong:
        old = aged(tmp_path, authority, registrar=wrong.address)
        with pytest.raises(IdentityError, match=r"certificate of registrar .* wrong CA"):
            renew(old)


def test_another_party_in_the_registrars_place_is_refused(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imposter = make_identity(tmp_path, "thief", Role.COMPUTE, authority=authority)
    monkeypatch.setattr(Registrar, "_own_identity", lambda _self: imposter)
    with Registrar(authority.folder, port=0) as wrong:
        old = aged(tmp_path, authority, registrar=wrong.address)
        with pytest.raises(IdentityError, match=r"names somebody else"):
            renew(old)


def test_where_no_registrar_is_known_the_way_by_hand_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError, match=r"splitlearn request"):
        renew(aged(tmp_path, authority, registrar=None))


def test_the_deny_list_is_fetched_into_the_folder(
    authority: Authority, address: str, nobody: str, tmp_path: Path
) -> None:
    bank = aged(tmp_path, authority, registrar=address)
    revoke(authority.folder, party="lab")
    assert fetch_denied(bank).number == 1
    assert bank.denied == authority.denied
    with pytest.raises(ChannelError, match=r"refuses connections"):
        fetch_denied(aged(tmp_path, authority, registrar=nobody))


def test_renewal_brings_the_deny_list_along(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    bank = aged(tmp_path, authority, registrar=address)
    revoke(authority.folder, party="lab")
    assert renew(bank).denied == authority.denied


def test_while_a_run_lasts_certificate_and_deny_list_are_kept_fresh(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=address)
    revoke(authority.folder, party="lab")
    told: list[str] = []
    with kept_fresh(old, report=told.append, every_s=0.01):
        wait_until(lambda: old.denied.number == 1)
        wait_until(lambda: old.reload().fingerprint != old.fingerprint)
        revoke(authority.folder, party="shop")
        wait_until(lambda: old.denied.number == 2)
    assert told == []


def test_a_registrar_that_comes_back_is_found_again(authority: Authority, tmp_path: Path) -> None:
    first = Registrar(authority.folder, port=0)
    first.close()
    old = aged(tmp_path, authority, registrar=first.address)
    revoke(authority.folder, party="lab")
    told: list[str] = []
    with (
        kept_fresh(old, report=told.append, every_s=0.01),
        Registrar(authority.folder, port=first.port),
    ):
        wait_until(lambda: old.denied.number == 1)
    assert told == []


def test_a_no_is_told_once_and_the_run_goes_on(
    authority: Authority, address: str, tmp_path: Path
) -> None:
    old = aged(tmp_path, authority, registrar=address)
    revoke(authority.folder, party="bank")
    told: list[str] = []
    heard = threading.Event()

    def report(sentence: str) -> None:
        told.append(sentence)
        heard.set()

    with kept_fresh(old, report=report, every_s=0.001):
        assert heard.wait(10)
    assert len(told) == 1
    assert "denied" in told[0]


def test_without_a_registrar_nothing_is_asked_and_nothing_told(
    authority: Authority, tmp_path: Path
) -> None:
    told: list[str] = []
    with kept_fresh(aged(tmp_path, authority, registrar=None), report=told.append):
        pass
    assert told == []


def wait_until(true: Callable[[], bool]) -> None:
    """Ask again until it holds; a minute is for a machine in trouble."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)

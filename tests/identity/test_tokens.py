import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from splitlearn.errors import IdentityError, ManifestError
from splitlearn.identity import Authority, PartyName, create_federation, invite, revoke
from splitlearn.identity.files import mode_of
from splitlearn.identity.tokens import MAX_TTL_S, Token, redeem
from splitlearn.roles import Role

NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return create_federation(tmp_path / "fed", name="fed.example")


def use(
    authority: Authority, text: str, *, now: datetime = NOW, expected: str | None = None
) -> PartyName:
    token = Token.parse(text)
    return redeem(
        authority.folder,
        token_id=token.id,
        secret=token.secret,
        federation="fed.example",
        expected=expected,
        now=now,
    )


def test_a_token_pins_the_ca_and_is_bound_to_party_and_role(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    assert Token.parse(f" {text}\n").pin == authority.pin
    assert use(authority, text) == authority.name(party="bank", role=Role.COMPUTE)


def test_a_token_works_once(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    use(authority, text)
    with pytest.raises(IdentityError, match=r"for compute bank was used at"):
        use(authority, text)


def test_of_many_at_once_one_gets_the_token(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def attempt() -> None:
        barrier.wait()
        try:
            use(authority, text)
            outcomes.append("granted")
        except IdentityError:
            outcomes.append("refused")

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["granted"] + ["refused"] * 7


def test_a_token_expires(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, ttl_s=60, now=NOW)
    with pytest.raises(IdentityError, match=r"for compute bank expired at"):
        use(authority, text, now=NOW + timedelta(seconds=60))
    use(authority, text, now=NOW + timedelta(seconds=59))


def test_a_wrong_secret_and_an_unknown_token_are_not_told_apart(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    prefix, token_id, secret, pin = text.split(".")
    sentences = set()
    for wrong in (
        ".".join((prefix, token_id, "A" * 32, pin)),
        ".".join((prefix, "0" * 16, secret, pin)),
    ):
        with pytest.raises(IdentityError, match=r"wrong or unknown") as caught:
            use(authority, wrong)
        sentences.add(str(caught.value))
    assert len(sentences) == 1
    use(authority, text)


def test_an_empty_secret_opens_nothing(authority: Authority) -> None:
    with pytest.raises(IdentityError, match=r"wrong or unknown"):
        redeem(authority.folder, token_id="", secret="", federation="a", expected=None, now=NOW)


def test_a_token_for_another_party_stays_unused(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    with pytest.raises(IdentityError, match=r"is for .*bank.*, not for .*lab"):
        use(authority, text, expected="spiffe://fed.example/party/lab/role/compute")
    name = authority.name(party="bank", role=Role.COMPUTE)
    assert use(authority, text, expected=name.uri) == name


def test_the_folder_and_the_repr_hold_no_secret(authority: Authority) -> None:
    text = invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)
    secret = Token.parse(text).secret
    assert secret not in repr(Token.parse(text))
    for path in authority.folder.iterdir():
        assert secret.encode() not in path.read_bytes()
    assert mode_of(authority.folder / "tokens.json") == 0o600


@pytest.mark.parametrize(
    "text", ["", "sl1", "sl1.a.b.c", "sl2." + "0" * 16 + "." + "A" * 32 + "." + "0" * 64]
)
def test_what_is_no_token_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ManifestError, match=r"not a join token") as caught:
        Token.parse(text)
    assert "A" * 32 not in str(caught.value)


@pytest.mark.parametrize("ttl_s", [0, -1, MAX_TTL_S + 1, float("nan")])
def test_a_life_that_is_none_is_refused(authority: Authority, ttl_s: float) -> None:
    with pytest.raises(ManifestError, match=r"a token's life"):
        invite(authority.folder, party="bank", role=Role.COMPUTE, ttl_s=ttl_s)


def test_nobody_is_invited_as_registrar_or_under_a_denied_name(authority: Authority) -> None:
    with pytest.raises(ManifestError, match=r"the federation's own"):
        invite(authority.folder, party="bank", role=Role.REGISTRAR)
    revoke(authority.folder, party="bank")
    with pytest.raises(ManifestError, match=r"deny-list"):
        invite(authority.folder, party="bank", role=Role.COMPUTE)


def test_long_dead_tokens_are_forgotten_and_their_number_is_bounded(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splitlearn.identity.tokens._MAX_TOKENS", 2)
    for days in (20, 19, 1, 0):
        invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW - timedelta(days=days))
    assert len(json.loads((authority.folder / "tokens.json").read_bytes())) == 2
    with pytest.raises(ManifestError, match=r"holds 2 tokens"):
        invite(authority.folder, party="bank", role=Role.COMPUTE, now=NOW)


def test_a_record_that_is_none_is_a_manifest_error(authority: Authority) -> None:
    (authority.folder / "tokens.json").write_text("[]")
    with pytest.raises(ManifestError, match=r"tokens.json is not one of ours"):
        invite(authority.folder, party="bank", role=Role.COMPUTE)

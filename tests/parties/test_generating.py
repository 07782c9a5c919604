"""What a generator's party refuses before a byte is sent."""

from pathlib import Path

import pytest

from parties.generating import stream_round
from splitlearn.errors import ChannelError, IdentityError, ManifestError, WireError
from splitlearn.manifest import Summons
from tests.tongues import tongues

SUMMONS = Summons(run="tongues", number=0, address="127.0.0.1:1", deadline_s=0.5)


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tongues(tmp_path, {"ana": "aa"}).generators["ana"]


@pytest.mark.parametrize("descriptor", [b"", b"{}", b"\xff", SUMMONS.encoded + b"x"])
def test_a_summons_that_is_none_is_refused(settings: Path, descriptor: bytes) -> None:
    with pytest.raises(WireError, match="not one of ours"):
        stream_round(settings, descriptor)


def test_a_discriminator_that_is_not_there_is_named(settings: Path) -> None:
    with pytest.raises(ChannelError, match=r"discriminator\.hub\.fed\.example"):
        stream_round(settings, SUMMONS.encoded)


def test_text_or_vocabulary_that_cannot_be_used_is_said_before_anybody_is_dialled(
    settings: Path,
) -> None:
    (settings.parent / "tokenizer.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"tokenizer\.json"):
        stream_round(settings, SUMMONS.encoded)


def test_a_policy_that_is_none_stops_it(settings: Path) -> None:
    (settings.parent / "ana" / "policy.toml").write_text("rules = 3")
    with pytest.raises(ManifestError, match="policy"):
        stream_round(settings, SUMMONS.encoded)


def test_a_party_without_an_identity_is_told_how_to_get_one(settings: Path) -> None:
    (settings.parent / "ana-generator" / "party.crt").unlink()
    with pytest.raises((IdentityError, ManifestError), match="join"):
        stream_round(settings, SUMMONS.encoded)

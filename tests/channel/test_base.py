"""What every channel promises, as types."""

import dataclasses
from collections.abc import Callable

import pytest

from splitlearn.channel import Channel, Conversation, MemoryChannel, PeerRestarted, Released, pair
from splitlearn.errors import ChannelError


def test_a_released_payload_cannot_be_changed_and_does_not_show_its_bytes(
    message: Callable[..., Released],
) -> None:
    released = message(3, size=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        released.seq = 4  # type: ignore[misc]
    assert "raw" not in repr(released)


def test_a_restarted_peer_is_an_error_of_the_channel() -> None:
    assert issubclass(PeerRestarted, ChannelError)
    assert PeerRestarted("again").exit_code == 5


def test_both_channels_are_channels(ends: tuple[Conversation, Conversation]) -> None:
    over_grpc: Channel = ends[0]
    first, second = pair()
    in_memory: Channel = first
    assert over_grpc.peer == "compute.beta.fed.example"
    assert in_memory.peer == "compute"
    assert isinstance(second, MemoryChannel)

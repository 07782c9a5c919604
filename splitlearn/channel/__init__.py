"""Channels: released bytes to one peer and frames back, in order, exactly once, over broken links.

`connect` dials and `Listener` answers, both over mutual TLS 1.3; either role may do either. `pair`
gives two ends in memory. Never decides what may be sent: a channel takes only what the gate released.
"""

from splitlearn.channel.base import Channel, PeerRestarted, Released
from splitlearn.channel.conversation import Conversation
from splitlearn.channel.dialler import connect
from splitlearn.channel.inquiry import inquire
from splitlearn.channel.listener import Listener
from splitlearn.channel.memory import MemoryChannel, pair

__all__ = [
    "Channel",
    "Conversation",
    "Listener",
    "MemoryChannel",
    "PeerRestarted",
    "Released",
    "connect",
    "inquire",
    "pair",
]

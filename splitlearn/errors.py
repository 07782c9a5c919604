"""Every error a user can meet, sorted by what to do about it; each branch has an exit code.

No exception of another library leaves a room: it is caught at the room's edge and raised again as
one of these, with one sentence that says what happened, what was expected and whose fault it is.
A message never contains a tensor's values, a text, a label or a key.
"""

__all__ = [
    "AuditError",
    "ChannelError",
    "IdentityError",
    "ManifestError",
    "PeerError",
    "RefusedError",
    "SessionError",
    "SplitLearnError",
    "WireError",
]


class SplitLearnError(Exception):
    """Base of all errors that are meant to be read by a user. `exit_code` is the process's."""

    exit_code = 1


class ManifestError(SplitLearnError):
    """Your file, folder or option is wrong: mend it and run again. Nothing was started."""

    exit_code = 2


class RefusedError(SplitLearnError):
    """Our own policy said no. Nothing was sent and the run stopped.

    `rule` is the rule's identifier, as it stands in the policy and in the log's `denied` record.
    """

    exit_code = 3

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class PeerError(SplitLearnError):
    """The other side broke the rules. The channel was closed; talk to the people who run it."""

    exit_code = 4


class WireError(PeerError):
    """Bytes from a peer are not a legal frame, header or tensor container."""


class SessionError(PeerError):
    """A legal frame at an illegal moment: repeated, reordered, late, or not allowed in this state."""


class IdentityError(PeerError):
    """A certificate, token or proof is not the one that was expected."""


class ChannelError(SplitLearnError):
    """The network failed or a peer fell silent. Running the same command again is reasonable."""

    exit_code = 5


class AuditError(SplitLearnError):
    """The record cannot be written, or what is recorded does not add up."""

    exit_code = 6

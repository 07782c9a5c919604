"""What makes a run folder one run's: job, inputs and secrets, written down before anything is sent."""

import hmac
import secrets

import msgspec

from splitlearn.errors import AuditError, ManifestError
from splitlearn.manifest import Job

__all__ = ["Claim", "claim_folder"]


class Claim(msgspec.Struct, frozen=True):
    """What makes a run folder one run's: the salt of its log, and what went in.

    labels: the secret that randomised labels, pseudonyms and further salts are drawn by. Unlike the
    salt, no peer ever has it.
    """

    salt: str
    job: str
    inputs: str
    labels: str = ""

    def salt_of(self, party: int) -> str:
        """The salt of the log of what is said with that compute party: none can tell another's."""
        if not party:
            return self.salt
        secret = bytes.fromhex(self.labels)
        return hmac.digest(secret, f"salt of party {party}".encode(), "sha256").hex()

    def salt_of_hop(self, party: int) -> str:
        """The salt of the logs of what that compute party and the one before it say to each other."""
        secret = bytes.fromhex(self.labels)
        return hmac.digest(secret, f"salt of the hop to party {party}".encode(), "sha256").hex()


def claim_folder(job: Job) -> Claim:
    """The run's salt and secret: drawn for a new folder, read from one that this very run has claimed.

    A folder belongs to a run from its first checkpoint on: before it nothing was sent, and a job
    that was refused may be corrected.
    """
    path = job.run.folder / "run.json"
    mine = (job.digest(), job.inputs_digest())
    try:
        job.run.folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            claim = msgspec.json.decode(path.read_bytes(), type=Claim)
            begun = (job.run.folder / "checkpoints").exists()
            if (claim.job, claim.inputs) == mine:
                return claim
            if begun:
                raise ManifestError(
                    f"run folder {job.run.folder} holds a run of another job, model or data; "
                    f"choose another run.folder in {job.file}, or remove that one to begin anew"
                )
        claim = Claim(
            salt=secrets.token_hex(32),
            job=mine[0],
            inputs=mine[1],
            labels=secrets.token_hex(32),
        )
        part = path.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_bytes(msgspec.json.encode(claim))
        part.rename(path)
    except (OSError, msgspec.MsgspecError) as error:
        raise AuditError(f"run folder {job.run.folder} cannot be used: {error}") from error
    return claim

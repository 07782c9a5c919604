"""Who is who: a federation's CA, join tokens, certificates, signing keys and the deny-list.

Keys are made where they are used and stay there. Nothing here sends anything but public keys and
one-use tokens, and only to the registrar that the token pins.
"""

from splitlearn.identity.authority import Authority, create_federation, revoke
from splitlearn.identity.denied import DenyList
from splitlearn.identity.diagnose import Finding, check_listen, examine, probe
from splitlearn.identity.enrol import approve, asked_name, install, join, request
from splitlearn.identity.judge import Peer, authorise, verify_proof
from splitlearn.identity.names import PartyName
from splitlearn.identity.party import Identity
from splitlearn.identity.registrar import REGISTRAR_PORT, Registrar
from splitlearn.identity.renewal import due_at, fetch_denied, kept_fresh, renew, renew_if_due
from splitlearn.identity.tokens import invite

__all__ = [
    "REGISTRAR_PORT",
    "Authority",
    "DenyList",
    "Finding",
    "Identity",
    "PartyName",
    "Peer",
    "Registrar",
    "approve",
    "asked_name",
    "authorise",
    "check_listen",
    "create_federation",
    "due_at",
    "examine",
    "fetch_denied",
    "install",
    "invite",
    "join",
    "kept_fresh",
    "probe",
    "renew",
    "renew_if_due",
    "request",
    "revoke",
    "verify_proof",
]

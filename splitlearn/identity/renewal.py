"""Keeping a party's certificate and deny-list fresh. Same name, same keys, a new end.

A registrar that cannot be reached is no reason to stop while the certificate in use is still good; one
that says no is.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from splitlearn.errors import ChannelError, ManifestError, SplitLearnError
from splitlearn.identity import certificates, exchange, tls
from splitlearn.identity.denied import DenyList, adopt
from splitlearn.identity.judge import check_dates
from splitlearn.identity.names import registrar_name
from splitlearn.identity.party import Identity

__all__ = ["KEEP_EVERY_S", "due_at", "fetch_denied", "kept_fresh", "renew", "renew_if_due"]

# How long a revoked party may stay welcome; a look costs the registrar a few milliseconds.
KEEP_EVERY_S = 600.0
_PARTING_S = 1.0


def due_at(identity: Identity) -> datetime:
    """When the certificate has lived two thirds of its life, and should be renewed."""
    begins = identity.certificate.not_valid_before_utc
    return begins + (identity.certificate.not_valid_after_utc - begins) * 2 / 3


def renew(identity: Identity, *, deadline_s: float = exchange.DEADLINE_S) -> Identity:
    """Fetch a new certificate and the current deny-list; return the identity as it is then.

    Raises ManifestError (no registrar known), ChannelError (not reachable), IdentityError (expired
    already, denied, or a registrar of another CA).
    """
    check_dates(identity.certificate, whose=f"certificate in {identity.folder}", now=_now())
    csr, log_public, log_proof = exchange.proof_fields(identity.request())
    ask = exchange.Renew(csr=csr, log_public=log_public, log_proof=log_proof)
    answer = _client(identity, presents=True).post("/v1/renew", ask, deadline_s=deadline_s)
    grant = exchange.decode(answer, type=exchange.Grant, whose="answer of the registrar")
    return Identity.establish(
        identity.folder,
        certificate=grant.certificate.encode(),
        ca=certificates.pem(identity.ca),
        denied=bytes(grant.denied),
        registrar=identity.registrar,
    )


def renew_if_due(
    identity: Identity, *, now: datetime, deadline_s: float = exchange.DEADLINE_S
) -> Identity:
    """Renew at two thirds of the certificate's life, or return what is in use while it is good.

    Raises IdentityError where the registrar says no, or the certificate has expired and no registrar
    could renew it.
    """
    if now < due_at(identity):
        return identity
    # Another process of the same party may have been faster.
    fresh = identity.reload()
    if now < due_at(fresh):
        return fresh
    check_dates(fresh.certificate, whose=f"certificate in {fresh.folder}", now=now)
    if fresh.registrar is None:
        return fresh
    try:
        return renew(fresh, deadline_s=deadline_s)
    except ChannelError:
        return fresh


def fetch_denied(identity: Identity, *, deadline_s: float = exchange.DEADLINE_S) -> DenyList:
    """Fetch the deny-list into the folder; return it. Raises as `renew` does."""
    data = _client(identity, presents=False).get("/v1/denied", deadline_s=deadline_s)
    federation = identity.name.federation
    return adopt(identity.folder, data=data, ca=identity.ca, federation=federation)


@contextmanager
def kept_fresh(
    identity: Identity,
    *,
    report: Callable[[str], None],
    every_s: float = KEEP_EVERY_S,
) -> Iterator[None]:
    """While the block runs, look every `every_s` seconds whether to renew, and fetch the deny-list.

    Whoever reads the folder anew finds what came. A registrar that cannot be reached is asked again
    next time; one that says no is told to `report`, once, and asked no more.
    """
    stop = threading.Event()

    def keep() -> None:
        current = identity
        while True:
            try:
                current = renew_if_due(current, now=_now())
                if current.registrar is not None:
                    fetch_denied(current)
            except ChannelError:
                pass
            except SplitLearnError as error:
                report(str(error))
                return
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=keep, name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # A registrar that hangs holds nobody up; the thread ends by its own deadline.
        thread.join(_PARTING_S)


def _client(identity: Identity, *, presents: bool) -> exchange.Client:
    if identity.registrar is None:
        raise ManifestError(
            f"{identity.folder} knows no registrar: carry a new request to it by hand "
            "(splitlearn request, then splitlearn install)"
        )
    return exchange.Client(
        address=identity.registrar,
        context=tls.client_context(
            ca_pem=identity.ca_pem, folder=identity.folder if presents else None
        ),
        server_name=registrar_name(identity.name.federation).dns,
    )


def _now() -> datetime:
    return datetime.now(UTC)

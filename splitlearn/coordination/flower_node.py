"""Flower's SuperNode as we run it: with our TLS, a door before its own API, and an eye on what is shipped.

Runs in a process of its own (`node`), for Flower ends the process it runs in. The one module that
reaches into the SuperNode's internals; written for flwr 1.42 (`version`).
"""

import hashlib
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.start_client_internal import start_client_internal

from splitlearn.coordination.fab import check_fab
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.guard import LocalDoor
from splitlearn.coordination.health import coordinator_context
from splitlearn.coordination.orders import Ending, Orders, read_orders, write_ending
from splitlearn.coordination.version import check_version
from splitlearn.errors import PeerError
from splitlearn.identity.exchange import MAX_ANSWER_BYTES, Refusal, decode
from splitlearn.identity.party import Keys

__all__ = ["PatientStates", "run"]

_LOOK_S = 5.0
_LOOPBACK = "127.0.0.1"
# A ClientApp's process that has not begun by then is started once more. Flower's own 30 s are too few
# for a busy machine, and each further process makes it busier: then none of them ever begins.
_START_S = 300.0


def run(path: Path) -> None:
    """Run the node that the orders in the file `path` describe, until Flower ends it."""
    check_version()
    orders = read_orders(path)
    fresh = FreshIdentity(orders.identity)
    threading.Thread(target=_stay_fresh, args=(fresh,), name="fresh", daemon=True).start()
    key = Keys.load(orders.identity).certificate
    # flwr 1.42 has no other way to give its Fleet client a client certificate.
    vars(fleet_http_connection)["FleetHttpClient"] = _client_class(orders, fresh)
    objects = ObjectStoreFactory()
    states = PatientStates(objectstore_factory=objects)
    address = _serve_apps(create_app(state_factory=states, superexec_auth_secret=None))
    start_client_internal(
        state_factory=states,
        server_address=orders.address,
        node_config={"settings": str(orders.settings), "processes": orders.processes},
        insecure=False,
        authentication_keys=(key, key.public_key()),
        runtime_api_address=address,
        runtime_dependency_install=False,
    )


class PatientStates(NodeStateFactory):
    """What a node remembers, as Flower has it, but for how long an app's process may take to begin."""

    def state(self) -> InMemoryNodeState:
        with self.lock:
            if self.state_instance is None:
                self.state_instance = _PatientState(self.objectstore_factory.store())
            assert isinstance(self.state_instance, InMemoryNodeState)
            return self.state_instance


class _PatientState(InMemoryNodeState):
    def claim_task(self, task_id: int) -> str | None:
        token = super().claim_task(task_id)
        with self.lock_task_store:
            record = self.task_token_store.get(task_id)
            if token is not None and record is not None and record.token == token:
                record.active_until = now() + timedelta(seconds=_START_S)
        return token


def _client_class(orders: Orders, fresh: FreshIdentity) -> type[FleetHttpClient]:
    context = coordinator_context(fresh, party=orders.party)

    class Client(FleetHttpClient):
        """Over our TLS; takes no bundle with code; notes why it was refused."""

        @classmethod
        def from_server_address(
            cls,
            server_address: str,
            insecure: bool,
            root_certificates: bytes | str | None,
            interceptors: Sequence[Any],
            *,
            retry_invoker: Any = None,
        ) -> "Client":
            del insecure, root_certificates
            return cls(
                f"https://{server_address}",
                interceptors=interceptors,
                verify=context,
                retry_invoker=retry_invoker,
            )

        def GetFab(self, request: Any) -> Any:  # noqa: N802
            response = super().GetFab(request)
            content = bytes(response.fab.content)
            try:
                check_fab(content)
                if hashlib.sha256(content).hexdigest() != request.hash_str:
                    raise PeerError("the app that the coordinator ships is not the one it named")
            except PeerError as error:
                write_ending(orders.ending, Ending(sentence=str(error), final=True))
                raise
            return response

        def _unary_unary(self, **asked: Any) -> Any:
            try:
                return super()._unary_unary(**asked)
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.UNAUTHORIZED:
                    _note_refusal(orders, error.response.content)
                raise

    return Client


def _note_refusal(orders: Orders, body: bytes) -> None:
    try:
        told = decode(body[:MAX_ANSWER_BYTES], type=Refusal, whose="answer").sentence
    except PeerError:
        # Flower's own: our door had nothing to say against us, the signature of the time did.
        told = "it does not accept this node's signature: unknown node, or the clocks differ"
    shown = "".join(c if c.isprintable() else "?" for c in told)
    write_ending(orders.ending, Ending(sentence=f"coordinator says: {shown}", final=False))


def _serve_apps(app: Any) -> str:
    """Serve the node's own API, which its ClientApp's process asks, on loopback; return where."""
    listener = socket.socket(socket.AF_INET)
    listener.bind((_LOOPBACK, 0))
    config = uvicorn.Config(
        LocalDoor(app),
        ws="none",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="warning",
    )
    server = uvicorn.Server(config)
    threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, name="apps", daemon=True
    ).start()
    while not server.started:
        time.sleep(0.02)
    return f"{_LOOPBACK}:{listener.getsockname()[1]}"


def _stay_fresh(fresh: FreshIdentity) -> None:
    """Notice a renewed certificate, so that the next connection shows it."""
    while True:
        time.sleep(_LOOK_S)
        fresh.now()

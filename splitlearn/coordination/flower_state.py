"""Flower's SuperLink as we use it from inside: its app, its database, its table of nodes.

The one module that reaches into the SuperLink's internals. Written for flwr 1.42 (`version`), imported
only in a process whose environment `home` has set.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.constant import NodeStatus
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from splitlearn.coordination.members import Node
from splitlearn.coordination.version import check_version
from splitlearn.errors import PeerError

__all__ = ["FlowerNodes", "make_app"]

check_version()

# SuperExec ends at its next look, a second later, and busy machines are slow.
_PARTING_S = 5.0


def make_app(*, database: Path, host: str, port: int) -> tuple[Any, "FlowerNodes"]:
    """The SuperLink's ASGI app over `database`, and its table of nodes.

    host, port: where its own child processes reach it; plain HTTP, so on loopback only.
    """
    config = SuperLinkLifespanConfig(
        control_address=f"{host}:{port}",
        health_server_address=None,
        host=host,
        port=port,
        insecure=True,
        certificates=None,
        superexec_auth_secret=None,
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type="grpc-rere",
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=str(database),
        isolation="subprocess",
        runtime_dependency_install=False,
    )
    app = create_app(config, _Lifespan)
    return app, FlowerNodes(app.state.linkstate_factory)


class _Lifespan(SuperLinkLifespan):
    """Flower's own, but that no SuperExec is left behind: Flower waits for it for one second."""

    def shutdown(self) -> None:
        process = self.superexec_process
        super().shutdown()
        if process is None:
            return
        try:
            process.wait(_PARTING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class FlowerNodes:
    """`members.NodeTable` over Flower's LinkState."""

    def __init__(self, factory: Any) -> None:
        self._factory = factory

    def nodes(self) -> Iterable[Node]:
        """Every node that is not unregistered."""
        found = self._factory.state().get_node_info(
            statuses=[NodeStatus.REGISTERED, NodeStatus.ONLINE, NodeStatus.OFFLINE]
        )
        return [
            Node(
                number=node.node_id, party=node.name, key=bytes(node.public_key), status=node.status
            )
            for node in found
        ]

    def add(self, *, party: str, key: bytes) -> None:
        """Register a node. Raises PeerError where its key was unregistered before."""
        try:
            self._factory.state().create_node(
                NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL, name=party
            )
        except ValueError:
            # Flower keeps a removed node's key, so that nobody comes back with it.
            raise PeerError(
                f"{party} comes with a key that was unregistered here; it has to join again with a "
                "new token, into a new folder"
            ) from None

    def remove(self, number: int) -> None:
        """Unregister a node."""
        self._factory.state().delete_node(NOOP_FLWR_AID, number)

    def rest(self, number: int) -> None:
        """Call a node offline."""
        self._factory.state().deactivate_node(number)

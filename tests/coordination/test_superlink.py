"""The real SuperLink behind its doors, asked over real TLS by those who may and those who may not."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesRequest, StartRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.health import coordinator_context
from splitlearn.coordination.superlink import SuperLink
from splitlearn.errors import ManifestError
from splitlearn.identity import Identity, Registrar, invite, join, revoke
from splitlearn.identity.certificates import new_key, public_key_pem
from splitlearn.identity.denied import adopt
from splitlearn.identity.party import Keys
from splitlearn.identity.tls import client_context
from splitlearn.roles import Role
from tests.coordination.conftest import Place
from tests.federation import make_authority, make_identity

T = TypeVar("T", bound=ProtobufClient)


class Caller:
    """Flower's own clients, over the TLS of one party, or of nobody."""

    def __init__(self, place: Place, identity: Identity | None, *, signs: Identity | None) -> None:
        if identity is None:
            self.tls = client_context(ca_pem=place.trainer.ca_pem)
            self.tls.check_hostname = False
        else:
            self.tls = coordinator_context(FreshIdentity(identity.folder))
        self.url = f"https://{place.link.address}"
        key = Keys.load(signs.folder).certificate if signs else new_key()
        self.interceptor = NodeAuthHttpInterceptor(key, key.public_key())
        self.open: list[ProtobufClient] = []

    def fleet(self) -> FleetHttpClient:
        return self._kept(
            FleetHttpClient(self.url, interceptors=[self.interceptor], verify=self.tls)
        )

    def control(self) -> ControlHttpClient:
        return self._kept(ControlHttpClient(self.url, verify=self.tls))

    def runtime(self) -> RuntimeHttpClient:
        return self._kept(RuntimeHttpClient(self.url, verify=self.tls))

    def _kept(self, client: T) -> T:
        self.open.append(client)
        return client


class Calling(Protocol):
    def __call__(self, identity: Identity | None, *, signs: Identity | None = None) -> Caller: ...


@pytest.fixture
def calling(place: Place) -> Iterator[Calling]:
    """Callers that hang up when the test is over. signs: whose key signs, where not their own."""
    made: list[Caller] = []

    def make(identity: Identity | None, *, signs: Identity | None = None) -> Caller:
        made.append(Caller(place, identity, signs=signs or identity))
        return made[-1]

    yield make
    for caller in made:
        for client in caller.open:
            client.close()


def tries(caller: Caller, *, node: int = 1) -> dict[str, Callable[[], object]]:
    """Everything that somebody without a right to it might want."""
    return {
        "list nodes": lambda: caller.control().ListNodes(ListNodesRequest()),
        "start a run": lambda: caller.control().StartRun(StartRunRequest()),
        "take a task": lambda: caller.runtime().AcquireTask(AcquireTaskRequest()),
        "register": lambda: caller.fleet().RegisterNode(RegisterNodeFleetRequest(public_key=b"x")),
        "activate": lambda: caller.fleet().ActivateNode(
            ActivateNodeRequest(public_key=b"x", heartbeat_interval=30)
        ),
        "pull messages": lambda: caller.fleet().PullMessages(
            PullMessagesRequest(node=Node(node_id=node))
        ),
    }


HIDDEN = {"list nodes", "start a run", "take a task"}


def outcome(act: Callable[[], object]) -> int | None:
    """The status with which an act was refused; None where the connection was."""
    try:
        act()
    except httpx.HTTPStatusError as refused:
        return refused.response.status_code
    except httpx.TransportError:
        return None
    raise AssertionError("it was let through")


def activate(caller: Caller, identity: Identity) -> int:
    with caller.fleet() as fleet:
        answer = fleet.ActivateNode(
            ActivateNodeRequest(
                public_key=public_key_pem(identity.certificate), heartbeat_interval=30
            )
        )
        return int(answer.node_id)


def test_a_peer_with_only_the_ca_certificate_gets_nothing(place: Place, calling: Calling) -> None:
    caller = calling(None)
    for what, act in tries(caller).items():
        assert outcome(act) is None, what


@pytest.mark.parametrize("role", ["trusted", "discriminator"])
def test_a_party_of_another_role_gets_nothing(place: Place, calling: Calling, role: str) -> None:
    stranger = place.party("stranger", role)
    for what, act in tries(calling(stranger)).items():
        assert outcome(act) == 401, what


def test_a_generator_gets_its_own_messages_and_nothing_else(place: Place, calling: Calling) -> None:
    anna, bert = place.party("anna"), place.party("bert")
    caller = calling(anna)
    mine = activate(caller, anna)
    theirs = activate(calling(bert), bert)
    with caller.fleet() as fleet:
        assert not fleet.PullMessages(PullMessagesRequest(node=Node(node_id=mine))).messages_list
        fleet.DeactivateNode(DeactivateNodeRequest(node_id=mine))
    acts = tries(caller, node=theirs)
    acts["end another's node"] = lambda: caller.fleet().DeactivateNode(
        DeactivateNodeRequest(node_id=theirs)
    )
    acts["unregister another's node"] = lambda: caller.fleet().UnregisterNode(
        UnregisterNodeFleetRequest(node_id=theirs)
    )
    for what, act in acts.items():
        # 404: what is not there for others at all; 401: what is another's.
        assert outcome(act) == (404 if what in HIDDEN else 401), what
    assert place.link.members is not None
    assert "bert" in place.link.members.present()
    assert "anna" not in place.link.members.present()


def test_a_certificate_without_the_key_to_sign_with_is_not_enough(
    place: Place, calling: Calling
) -> None:
    """The door lets the claimed key pass where it is the certificate's; Flower checks the signature."""
    carl = place.party("carl")
    own = Keys.load(carl.folder).certificate
    other = new_key()
    caller = calling(carl)
    caller.interceptor = NodeAuthHttpInterceptor(other, own.public_key())
    with pytest.raises(httpx.HTTPStatusError) as refused:
        activate(caller, carl)
    assert refused.value.response.status_code == 401


def test_a_denied_generator_is_shut_out_and_off_the_list(place: Place, calling: Calling) -> None:
    dora = place.party("dora")
    caller = calling(dora)
    node = activate(caller, dora)
    assert place.link.members is not None
    assert "dora" in place.link.members.present()
    authority = make_authority(place.folder)
    revoke(authority.folder, party="dora")
    adopt(
        place.trainer.folder,
        data=authority.denied_json,
        ca=authority.ca,
        federation=authority.federation,
    )
    with pytest.raises(httpx.HTTPStatusError) as refused:
        caller.fleet().PullMessages(PullMessagesRequest(node=Node(node_id=node)))
    assert "denied" in refused.value.response.text
    patiently(lambda: "unregistered dora: it is denied" in place.said)
    assert place.link.members is not None
    assert "dora" not in place.link.members.present()


def patiently(fact: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_the_doors_speak_tls_1_3_with_others_and_plain_http_on_loopback_only(
    place: Place, calling: Calling
) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://{place.link.address}/health", verify=old)
    assert place.link.control_address.startswith("127.0.0.1:")
    assert httpx.get(f"http://{place.link.control_address}/health").status_code == 200
    refused = httpx.post(
        f"http://{place.link.control_address}/v1/control/list-nodes",
        headers={"origin": "https://evil.example"},
    )
    assert refused.status_code == 403


def test_headers_without_an_end_are_cut_off(place: Place) -> None:
    anna = place.party("anna")
    context = coordinator_context(FreshIdentity(anna.folder))
    host, port = place.link.address.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain) as line,
    ):
        line.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        sent = 0
        with suppress(OSError):
            while sent < 2**24:
                line.sendall(b"x: " + b"y" * 2**14 + b"\r\n")
                sent += 2**14
            raise AssertionError("all of it was taken")
        assert sent < 2**22


def test_everything_on_disk_is_closed_to_other_users(place: Place) -> None:
    state = place.folder / "coordinator"
    found = [state, state / "flower", *state.glob("*")]
    assert len(found) > 4
    assert not [path for path in found if path.stat().st_mode & 0o077]


def test_twenty_joins_and_leaves_in_a_row_leave_the_right_member_list(
    place: Place, calling: Calling, tmp_path: Path
) -> None:
    authority = make_authority(place.folder)
    assert place.link.members is not None
    members = place.link.members
    expected = set(members.present())
    with Registrar(authority.folder, port=0) as registrar:
        for number in range(20):
            party = f"guest-{number % 7}"
            folder = tmp_path / f"{party}-{number}"
            token = invite(authority.folder, party=party, role=Role.GENERATOR)
            guest = join(token, address=registrar.address, folder=folder)
            caller = calling(guest)
            node = activate(caller, guest)
            expected.add(party)
            assert set(members.present()) == expected
            if number % 5 != 4:
                with caller.fleet() as fleet:
                    fleet.DeactivateNode(DeactivateNodeRequest(node_id=node))
                expected.discard(party)
            assert set(members.present()) == expected
            # A party that stays may not be pushed out by its next key: it leaves first.
            if party in expected:
                with caller.fleet() as fleet:
                    fleet.DeactivateNode(DeactivateNodeRequest(node_id=node))
                expected.discard(party)
    assert set(members.present()) == expected
    keys = [node.key for node in members._table.nodes() if node.party.startswith("guest-")]
    # Seven parties came with a new key each time; only the newest of each is known.
    assert len(keys) == 7


def test_only_a_discriminator_may_coordinate(tmp_path: Path) -> None:
    anna = make_identity(tmp_path, "anna", "generator")
    with pytest.raises(ManifestError, match="needs the role discriminator"):
        SuperLink(anna, folder=tmp_path / "state")


def test_a_port_or_a_folder_in_use_is_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="another coordinator works in"):
        SuperLink(place.trainer, folder=place.folder / "coordinator", port=0, control_port=0)
    port = int(place.link.address.rpartition(":")[2])
    for _ in range(2):
        with pytest.raises(ManifestError, match="cannot listen on"):
            SuperLink(place.trainer, folder=tmp_path / "state", port=port, control_port=0)


def test_a_database_open_to_others_is_refused(place: Place, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "superlink.sqlite").touch(mode=0o644)
    (state / "superlink.sqlite").chmod(0o644)
    link = SuperLink(place.trainer, folder=state, port=0, control_port=0)
    with pytest.raises(ManifestError, match="chmod 600"), suppress(KeyboardInterrupt):
        link.serve_forever()

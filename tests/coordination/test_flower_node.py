"""What our SuperNode does differently from Flower's, against the real SuperLink."""

import hashlib
import io
import zipfile
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from flwr.common.serde import fab_to_proto
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import fleet_http_connection
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from splitlearn.coordination import flower_node
from splitlearn.coordination.fab import build_fab
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.orders import Orders, read_ending
from splitlearn.errors import PeerError
from splitlearn.identity import Identity
from splitlearn.identity.certificates import public_key_pem
from splitlearn.identity.party import Keys
from tests.coordination.conftest import Place


def client(place: Place, identity: Identity, *, ending: Path) -> FleetHttpClient:
    orders = Orders(
        identity=identity.folder,
        address=place.link.address,
        party=None,
        settings=Path("generator.toml"),
        ending=ending,
    )
    key = Keys.load(identity.folder).certificate
    made = flower_node._client_class(orders, FreshIdentity(identity.folder))
    return made.from_server_address(
        place.link.address,
        False,
        None,
        [NodeAuthHttpInterceptor(key, key.public_key())],
    )


def test_the_client_that_flower_takes_has_our_certificate_and_is_refused_by_reason(
    place: Place, tmp_path: Path
) -> None:
    eve = place.party("eve")
    ending = tmp_path / "ending"
    with client(place, eve, ending=ending) as fleet:
        key = public_key_pem(eve.certificate)
        activated = fleet.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=30))
        fleet.PullMessages(PullMessagesRequest(node=Node(node_id=activated.node_id)))
        assert read_ending(ending) is None
        with pytest.raises(httpx.HTTPStatusError):
            fleet.PullMessages(PullMessagesRequest(node=Node(node_id=1)))
    told = read_ending(ending)
    assert told is not None
    assert not told.final
    assert "unknown node, or the clocks differ" in told.sentence
    gpu = place.party("gpu", "compute")
    with client(place, gpu, ending=ending) as fleet, pytest.raises(httpx.HTTPStatusError):
        fleet.PullMessages(PullMessagesRequest(node=Node(node_id=1)))
    told = read_ending(ending)
    assert told is not None
    assert "wrong role compute" in told.sentence


@pytest.mark.parametrize("hostile", ["code", "another digest"])
def test_a_bundle_with_code_or_another_than_was_named_is_not_handed_on(
    place: Place, tmp_path: Path, hostile: str
) -> None:
    """A hostile coordinator: it ships our two names, and a module that would hide ours."""
    good = build_fab()
    buffer = io.BytesIO(good.content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("parties/generator.py", "raise SystemExit")
    shipped = buffer.getvalue() if hostile == "code" else good.content
    digest = hashlib.sha256(shipped).hexdigest() if hostile == "code" else "0" * 64
    ending = tmp_path / "ending"
    assert get_fab(place, good.content, named=good.digest, ending=ending) == good.content
    assert read_ending(ending) is None
    with pytest.raises(PeerError, match="the app that the coordinator ships"):
        get_fab(place, shipped, named=digest, ending=ending)
    told = read_ending(ending)
    assert told is not None
    assert told.final
    assert ("other files" if hostile == "code" else "not the one it named") in told.sentence


def get_fab(place: Place, content: bytes, *, named: str, ending: Path) -> bytes:
    """What our node's client hands on of a bundle that some coordinator answers with."""

    def coordinator(_: httpx.Request) -> httpx.Response:
        answer = GetFabResponse(fab=fab_to_proto(Fab(named, content, {})))
        return httpx.Response(200, content=answer.SerializeToString())

    with client(place, place.party("fred"), ending=ending) as fleet:
        fleet._client.close()
        fleet._client = httpx.Client(transport=httpx.MockTransport(coordinator))
        return bytes(fleet.GetFab(GetFabRequest(hash_str=named)).fab.content)


def test_flower_still_has_the_name_that_is_replaced() -> None:
    assert fleet_http_connection.FleetHttpClient is FleetHttpClient


def test_a_process_that_is_slow_to_begin_is_not_started_again_beside_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower's node does so after 30 seconds, which on a busy machine never ends."""
    states = flower_node.PatientStates(ObjectStoreFactory())
    state = states.state()
    assert states.state() is state
    task = state.create_task("flwr-clientapp", run_id=1)
    assert task is not None
    token = state.claim_task(task)
    assert token is not None
    assert state.claim_task(task) is None
    begun = now()

    def later(seconds: float) -> None:
        monkeypatch.setattr(in_memory_corestate, "now", lambda: begun + timedelta(seconds=seconds))

    later(flower_node._START_S - 10)
    assert state.get_task_by_token(token) is not None
    later(flower_node._START_S + 10)
    assert state.get_task_by_token(token) is None
    monkeypatch.undo()
    assert state.claim_task(task) is not None

"""The two doors, without a server: who may ask what, however the question is put."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from splitlearn.coordination import guard
from splitlearn.coordination.fresh import FreshIdentity
from splitlearn.coordination.guard import FleetDoor, Health, LocalDoor, Member
from splitlearn.errors import PeerError
from splitlearn.identity import Identity, revoke
from splitlearn.identity.certificates import public_key_pem
from splitlearn.identity.denied import adopt
from tests.coordination.asgi import Answer, ask, echo
from tests.federation import make_authority, make_identity

ACTIVATE = "/v1/fleet/activate-node"
PULL = "/v1/fleet/pull-messages"
FORBIDDEN = [
    "/",
    "/docs",
    "/openapi.json",
    "/v1/control/list-nodes",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/runtime/pull-task-input",
    "/v1/fleet",
    "/v1/fleetx/pull-messages",
    "//v1/fleet/../control/start-run",
    "/health/",
    "/V1/FLEET/pull-messages",
]


class Desk:
    """A door before an app that echoes, and who came in."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.trainer = make_identity(tmp_path, "trainer", "discriminator")
        self.came: list[Member] = []
        self.said: list[str] = []
        self.door = FleetDoor(
            echo,
            fresh=FreshIdentity(self.trainer.folder),
            arrive=self.came.append,
            report=self.said.append,
        )

    def ask(self, path: str, *, by: Identity, speaks_for: Identity | None = None) -> Answer:
        key = public_key_pem((speaks_for or by).certificate)
        headers = [(b"flwr-public-key", b64encode(key))]
        return ask(self.door, path, certificate=by.certificate_der, headers=headers, chunks=[b"!"])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_generator_is_let_through_to_the_fleet_api_and_announced_when_it_is_activated(
    desk: Desk,
) -> None:
    anna = make_identity(desk.tmp_path, "anna", "generator")
    assert desk.ask(PULL, by=anna).body == PULL.encode() + b"!"
    assert desk.came == []
    assert desk.ask(ACTIVATE, by=anna).body == ACTIVATE.encode() + b"!"
    assert desk.came == [Member(name=anna.name, key=public_key_pem(anna.certificate))]


@pytest.mark.parametrize("path", FORBIDDEN)
def test_nothing_but_the_fleet_api_and_health_is_there_for_a_generator(
    desk: Desk, path: str
) -> None:
    answer = desk.ask(path, by=make_identity(desk.tmp_path, "anna", "generator"))
    assert answer.status == 404
    assert b"!" not in answer.body


def test_health_tells_the_time_and_who_answers(desk: Desk) -> None:
    before = datetime.now(UTC).timestamp()
    answer = desk.ask("/health", by=make_identity(desk.tmp_path, "anna", "generator"))
    health = msgspec.json.decode(answer.body, type=Health)
    assert before <= health.time <= datetime.now(UTC).timestamp()
    assert health.party == desk.trainer.name.uri


@pytest.mark.parametrize("role", ["trusted", "compute", "auditor", "discriminator"])
@pytest.mark.parametrize("path", ["/health", PULL, "/v1/control/start-run"])
def test_another_role_is_refused_everything(desk: Desk, role: str, path: str) -> None:
    answer = desk.ask(path, by=make_identity(desk.tmp_path, "other", role))
    assert answer.status == 401
    assert b"wrong role" in answer.body
    assert answer.headers[b"connection"] == b"close"


def test_who_shows_no_certificate_is_refused_everything(desk: Desk) -> None:
    for path in ("/health", PULL, "/v1/control/start-run"):
        answer = ask(desk.door, path)
        assert answer.status == 401
        assert b"showed none" in answer.body


def test_a_generator_of_another_federation_with_the_same_name_is_refused(
    desk: Desk, tmp_path: Path
) -> None:
    stranger = make_identity(tmp_path / "elsewhere", "anna", "generator")
    answer = desk.ask(PULL, by=stranger)
    assert answer.status == 401
    assert b"wrong CA" in answer.body


def test_an_expired_certificate_is_refused_by_name_of_the_reason(desk: Desk) -> None:
    past = datetime.now(UTC) - timedelta(days=3)
    old = make_identity(
        desk.tmp_path, "anna", "generator", not_before=past, not_after=past + timedelta(days=1)
    )
    answer = desk.ask(PULL, by=old)
    assert answer.status == 401
    assert b"expired" in answer.body


def test_a_denied_generator_is_shut_out_from_when_the_list_lies_in_the_folder(desk: Desk) -> None:
    anna = make_identity(desk.tmp_path, "anna", "generator")
    bert = make_identity(desk.tmp_path, "bert", "generator")
    assert desk.ask(PULL, by=anna).status == 200
    authority = make_authority(desk.tmp_path)
    revoke(authority.folder, party="anna")
    adopt(
        desk.trainer.folder,
        data=authority.denied_json,
        ca=authority.ca,
        federation=authority.federation,
    )
    answer = desk.ask(PULL, by=anna)
    assert answer.status == 401
    assert b"denied" in answer.body
    assert desk.ask("/health", by=anna).status == 401
    assert desk.ask(PULL, by=bert).status == 200


def test_a_generator_cannot_speak_for_another_ones_node(desk: Desk) -> None:
    anna = make_identity(desk.tmp_path, "anna", "generator")
    bert = make_identity(desk.tmp_path, "bert", "generator")
    for path in (PULL, ACTIVATE):
        answer = desk.ask(path, by=anna, speaks_for=bert)
        assert answer.status == 401
        assert b"another key" in answer.body
    assert desk.came == []
    for headers in ([], [(b"flwr-public-key", b"%%%")]):
        answer = ask(desk.door, PULL, certificate=anna.certificate_der, headers=headers)
        assert answer.status == 401
    # Of two headers Flower may read the one that we did not.
    both = [
        (b"flwr-public-key", b64encode(public_key_pem(bert.certificate))),
        (b"flwr-public-key", b64encode(public_key_pem(anna.certificate))),
    ]
    assert ask(desk.door, PULL, certificate=anna.certificate_der, headers=both).status == 401
    assert ask(desk.door, PULL, certificate=anna.certificate_der, headers=both[::-1]).status == 401


def test_who_may_not_arrive_is_told_why(desk: Desk) -> None:
    def refuse(_: Member) -> None:
        raise PeerError("not twice")

    door = FleetDoor(echo, fresh=FreshIdentity(desk.trainer.folder), arrive=refuse)
    desk.door = door
    answer = desk.ask(ACTIVATE, by=make_identity(desk.tmp_path, "anna", "generator"))
    assert (answer.status, b"not twice" in answer.body) == (401, True)


def test_a_connection_ends_when_its_certificate_is_due_for_renewal(desk: Desk) -> None:
    now = datetime.now(UTC)
    young = make_identity(desk.tmp_path, "anna", "generator")
    assert b"connection" not in desk.ask(PULL, by=young).headers
    old = make_identity(
        desk.tmp_path,
        "anna",
        "generator",
        not_before=now - timedelta(hours=20),
        not_after=now + timedelta(hours=4),
    )
    answer = desk.ask(PULL, by=old)
    assert (answer.status, answer.headers[b"connection"]) == (200, b"close")


def test_a_long_body_is_refused_before_anybody_reads_it(desk: Desk) -> None:
    anna = make_identity(desk.tmp_path, "anna", "generator")
    key = (b"flwr-public-key", b64encode(public_key_pem(anna.certificate)))
    limit = guard.MAX_FLEET_BYTES
    for headers, chunks in (
        ([(b"content-length", b"%d" % (limit + 1))], [b""]),
        ([(b"content-length", b"9" * 40)], [b""]),
        ([(b"content-length", b"-1")], [b""]),
        ([], [b"x" * limit, b"x"]),
        ([], [b"x" * (limit // 2)] * 3),
    ):
        answer = ask(
            desk.door,
            PULL,
            certificate=anna.certificate_der,
            headers=[key, *headers],
            chunks=chunks,
        )
        assert answer.status == 413
    answer = ask(
        desk.door, PULL, certificate=anna.certificate_der, headers=[key], chunks=[b"x" * limit]
    )
    assert len(answer.body) == limit + len(PULL)


def test_a_body_that_does_not_come_is_not_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr(guard, "BODY_S", 0.05)
    anna = make_identity(desk.tmp_path, "anna", "generator")
    sent = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": PULL,
        "headers": [(b"flwr-public-key", b64encode(public_key_pem(anna.certificate)))],
        "state": {guard.CERTIFICATE: anna.certificate_der},
    }
    asyncio.run(desk.door(scope, receive, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 413


def test_neither_door_takes_a_web_socket(desk: Desk) -> None:
    for door in (desk.door, LocalDoor(echo)):
        assert [m["type"] for m in ask(door, kind="websocket").sent] == ["websocket.close"]


HOST = (b"host", b"127.0.0.1:8472")


def test_the_local_door_lets_our_own_user_ask_anything() -> None:
    door = LocalDoor(echo, permitted=lambda _peer, _here: True)
    answer = ask(door, "/v1/control/start-run", headers=[HOST])
    assert answer.body == b"/v1/control/start-run"
    named = [(b"host", b"localhost:8472")]
    assert ask(door, "/v1/control/start-run", headers=named).status == 200


def test_the_local_door_asks_whose_the_connection_is() -> None:
    asked = []

    def permitted(peer: tuple[str, int], here: tuple[str, int]) -> bool:
        asked.append((peer, here))
        return False

    said: list[str] = []
    door = LocalDoor(echo, permitted=permitted, report=said.append)
    assert ask(door, "/v1/control/start-run", headers=[HOST]).status == 403
    assert asked == [(("127.0.0.1", 50000), ("127.0.0.1", 8472))]
    assert "another user" in said[0]
    assert ask(door, "/", headers=[HOST], client=None).status == 403


def test_by_default_a_connection_that_no_process_holds_is_refused() -> None:
    assert ask(LocalDoor(echo), "/", headers=[HOST], client=("127.0.0.1", 1)).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        [HOST, (b"origin", b"https://evil.example")],
        [HOST, (b"origin", b"null")],
        [(b"host", b"evil.example:8472")],
        [(b"host", b"127.0.0.1:1")],
        [],
    ],
)
def test_the_local_door_refuses_what_a_web_page_makes_a_browser_ask(
    headers: list[tuple[bytes, bytes]],
) -> None:
    door = LocalDoor(echo, permitted=lambda _peer, _here: True)
    assert ask(door, "/v1/control/start-run", headers=headers).status == 403


def test_the_local_door_bounds_bodies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_LOCAL_BYTES", 4)
    door = LocalDoor(echo, permitted=lambda _peer, _here: True)
    assert ask(door, "/", headers=[HOST], chunks=[b"12345"]).status == 413
    assert ask(door, "/", headers=[HOST], chunks=[b"1234"]).status == 200


def test_the_end_of_a_connection_reaches_the_app() -> None:
    import asyncio

    got = []

    async def app(_scope: object, receive: guard.Receive, _send: object) -> None:
        got.extend([await receive(), await receive()])

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "path": "/", "headers": [HOST], "client": ("1", 2), "server": None}
    scope["server"] = ("127.0.0.1", 8472)
    door = LocalDoor(app, permitted=lambda _peer, _here: True)
    asyncio.run(door(scope, receive, None))  # type: ignore[arg-type]
    assert [m["type"] for m in got] == ["http.disconnect"] * 2

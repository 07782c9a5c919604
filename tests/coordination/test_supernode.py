import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from splitlearn.coordination import supernode
from splitlearn.coordination.orders import Ending
from splitlearn.coordination.supernode import SuperNode
from splitlearn.errors import IdentityError, ManifestError, PeerError
from splitlearn.identity import Identity
from tests.coordination.conftest import Place
from tests.federation import make_identity


def node(tmp_path: Path, identity: Identity, *, address: str, **more: object) -> SuperNode:
    return SuperNode(
        identity,
        address=address,
        settings=tmp_path / "generator.toml",
        folder=tmp_path / "node",
        **more,  # type: ignore[arg-type]
    )


def test_only_a_generator_has_a_node(tmp_path: Path) -> None:
    gpu = make_identity(tmp_path, "gpu", "compute")
    with pytest.raises(ManifestError, match="needs the role generator"):
        node(tmp_path, gpu, address="127.0.0.1:1").run()


def test_a_skewed_clock_ends_it_with_the_figure_before_flower_is_started(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode, "ask_health", lambda *_, **__: 42.0)
    with pytest.raises(IdentityError, match="clock here is 42 s ahead of the coordinator's"):
        node(tmp_path, place.party("anna"), address=place.link.address).run()
    assert not (tmp_path / "node" / "orders.json").exists()


def test_a_coordinator_that_does_not_want_us_ends_it_with_its_reason(
    place: Place, tmp_path: Path
) -> None:
    anna = place.party("anna")
    with pytest.raises(IdentityError, match="wrong name"):
        node(tmp_path, anna, address=place.link.address, party="another").run()


def test_a_coordinator_that_is_away_is_waited_for_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode, "_AWAY_S", 0.01)
    anna = make_identity(tmp_path, "anna", "generator")
    said: list[str] = []
    waiting = node(tmp_path, anna, address="127.0.0.1:1", report=said.append)
    looks = counting(waiting, monkeypatch, until=3)
    waiting.run()
    assert looks() >= 3
    assert len(said) == 1
    assert "waiting: coordinator at 127.0.0.1:1 refuses connections" in said[0]


def counting(
    waiting: SuperNode, monkeypatch: pytest.MonkeyPatch, *, until: int
) -> Callable[[], int]:
    """Count its questions, and have it stopped after so many."""
    real = supernode.ask_health
    looks: list[str] = []

    def ask(address: str, **more: object) -> float:
        looks.append(address)
        if len(looks) >= until:
            waiting.stop()
        return real(address, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(supernode, "ask_health", ask)
    return lambda: len(looks)


def test_two_nodes_of_one_identity_do_not_run_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = make_identity(tmp_path, "anna", "generator")
    said: list[str] = []
    first = node(tmp_path, anna, address="127.0.0.1:1", report=said.append)
    waits = threading.Event()
    first.report = lambda _: waits.set()
    thread = threading.Thread(target=first.run)
    thread.start()
    assert waits.wait(20)
    with pytest.raises(ManifestError, match="another node of"):
        node(tmp_path, anna, address="127.0.0.1:1").run()
    first.stop()
    thread.join(20)
    assert not thread.is_alive()


def test_shipped_code_ends_it_for_good_and_anything_else_does_not(tmp_path: Path) -> None:
    anna = make_identity(tmp_path, "anna", "generator")
    said: list[str] = []
    judged = node(tmp_path, anna, address="127.0.0.1:1", report=said.append)
    judged._judge(Ending(sentence="coordinator says: later", final=False))
    judged._judge(None)
    assert said == [
        "node ended (coordinator says: later); it is started again",
        "node ended; it is started again",
    ]
    with pytest.raises(PeerError, match="code; nothing of it was run"):
        judged._judge(Ending(sentence="it ships code", final=True))

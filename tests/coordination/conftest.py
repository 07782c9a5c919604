"""One SuperLink for all tests of this room: a thread of this process, on ports of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from splitlearn.coordination.superlink import SuperLink
from splitlearn.identity import Identity
from tests.federation import make_identity

ROOT = Path(__file__).parents[2]


@dataclass
class Place:
    """folder: of the federation `fed.example`, its parties and the SuperLink. said: its lines."""

    folder: Path
    trainer: Identity
    link: SuperLink
    said: list[str] = field(default_factory=list)

    def party(self, name: str, role: str = "generator") -> Identity:
        return make_identity(self.folder, name, role)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("coordination")
    trainer = make_identity(folder, "trainer", "discriminator")
    said: list[str] = []
    # What the SuperLink starts are commands that lie elsewhere than this checkout.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    link = SuperLink(
        trainer, folder=folder / "coordinator", port=0, control_port=0, report=said.append
    )
    with link:
        yield Place(folder, trainer, link, said)
    monkeypatch.undo()

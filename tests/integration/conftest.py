"""What the whole-run tests share: one template process, one set of inputs, one undisturbed run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.integration.organisations import (
    Interpreter,
    Organisations,
    Starter,
    Template,
    write_inputs,
)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def inputs(home: Path) -> Path:
    """Model and data, below the home folder of all processes."""
    folder = home / "inputs"
    folder.mkdir()
    write_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def template(home: Path) -> Iterator[Template]:
    with Template(home) as started:
        yield started


@pytest.fixture(scope="session")
def undisturbed(
    inputs: Path, home: Path, template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Organisations]:
    """A whole run that nobody disturbs, each party an interpreter of its own, as a user starts them."""
    with Interpreter(home) as starter:
        both = Organisations(tmp_path_factory.mktemp("undisturbed"), inputs=inputs, starter=starter)
        try:
            clinic, gpuhost = both.both()
            both.finish(clinic, gpuhost)
            yield both
        finally:
            both.close()


class Arrange(Protocol):
    """Organisations(...) in a test's own folder; keywords are passed on."""

    def __call__(self, **settings: object) -> Organisations: ...


@pytest.fixture
def arrange(tmp_path: Path, inputs: Path, template: Starter) -> Iterator[Arrange]:
    made: list[Organisations] = []

    def make(**settings: object) -> Organisations:
        made.append(
            Organisations(tmp_path, inputs=inputs, starter=template, **settings)  # type: ignore[arg-type]
        )
        return made[-1]

    yield make
    for both in made:
        both.close()

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from splitlearn.coordination import fab
from splitlearn.coordination.control import Control, RunState
from splitlearn.coordination.endings import read_failure
from splitlearn.coordination.fab import build_fab
from splitlearn.coordination.home import settings
from splitlearn.coordination.members import Members
from splitlearn.errors import ChannelError, ManifestError, PeerError
from tests.coordination.conftest import Place
from tests.coordination.test_members import member


def ended(control: Control, run: int) -> RunState:
    ends = time.monotonic() + 90
    while not (state := control.state(run)).over:
        assert time.monotonic() < ends
        time.sleep(0.1)
    return state


def test_a_run_is_submitted_started_followed_and_its_error_is_told(
    place: Place, tmp_path: Path
) -> None:
    """A real ServerApp in a process of its own, which finds that its job is not there."""
    said: list[str] = []
    with Control(place.link.control_address) as control:
        run = control.start(tmp_path / "none.toml")
        follower = control.follow(run, said.append)
        state = ended(control, run)
        follower.close()
        assert state.ending == "failed"
        error = read_failure(state.details)
        assert isinstance(error, ManifestError)
        assert "none.toml cannot be read" in str(error)
        assert any("none.toml cannot be read" in line for line in said)
        assert not any("\x1b" in line for line in said)
        # What has ended already cannot be stopped, and nobody minds.
        control.stop(run)


def test_a_run_that_is_stopped_before_it_begins_is_over(place: Place, tmp_path: Path) -> None:
    with Control(place.link.control_address) as control:
        run = control.start(tmp_path / "job.toml")
        control.stop(run)
        assert ended(control, run).ending == "stopped"


def test_flwr_run_submits_the_same_bundle_from_its_folder(place: Place, tmp_path: Path) -> None:
    done = subprocess.run(
        ["flwr", "run", ".", "--run-config", f'job="{tmp_path / "none.toml"}"', "--format", "json"],
        cwd=Path(fab.__file__).parent / "app",
        env={**os.environ, **settings(place.folder / "coordinator" / "flower")},
        capture_output=True,
        text=True,
        check=True,
    )
    with Control(place.link.control_address) as control:
        run = int(json.loads(done.stdout)["run-id"])
        assert not control.state(run).details
        control.stop(run)


def test_nodes_are_listed_by_party(place: Place) -> None:
    members = place.link.members
    assert isinstance(members, Members)
    members.arrive(member("listed", b"listed"))
    with Control(place.link.control_address) as control:
        assert control.nodes()["listed"] == "registered"
        assert "dora" not in control.nodes()


def test_an_unknown_run_is_named(place: Place) -> None:
    with (
        Control(place.link.control_address) as control,
        pytest.raises(PeerError, match="status 404"),
    ):
        control.state(5)


def test_nobody_is_asked_but_this_machine() -> None:
    with pytest.raises(ManifestError, match="on the coordinator's own machine"):
        Control("10.0.0.5:8472")
    with (
        Control("localhost:1") as control,
        pytest.raises(ChannelError, match="no SuperLink answers"),
    ):
        control.nodes()


def test_what_refuses_is_told_apart_from_what_is_away(place: Place) -> None:
    """The other door of the same SuperLink, asked in the clear."""
    with (
        Control(place.link.control_address) as control,
        pytest.raises(PeerError, match="status 404"),
    ):
        control._ask(lambda: control._client._unary_unary(**asked()))


def asked() -> dict[str, object]:
    from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse

    return {
        "path": "/v1/control/none",
        "rpc_method": "/none",
        "request": ListRunsRequest(),
        "response_type": ListRunsResponse,
    }


def test_the_digest_of_what_is_submitted_is_its_own() -> None:
    bundle = build_fab()
    assert bundle.digest == hashlib.sha256(bundle.content).hexdigest()

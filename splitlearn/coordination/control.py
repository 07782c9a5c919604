"""Asking the SuperLink on this machine: submit a run, follow it, stop it, list nodes.

Over loopback, to the door that only this user's processes pass. Reaches into flwr's client for its
Control API; written for flwr 1.42 (`version`).
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from splitlearn.coordination.fab import build_fab
from splitlearn.coordination.version import check_version
from splitlearn.errors import ChannelError, ManifestError, PeerError
from splitlearn.identity.tls import parse_address

__all__ = ["Control", "RunState"]

# A question on loopback is answered at once; a SuperLink that only starts takes some seconds.
_DEADLINE_S = 30.0
_T = TypeVar("_T")
_LOOPBACK = "127.0.0.1"
# Flower colours the first word of its lines.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class RunState:
    """status: pending, starting, running or finished. ending: then completed, failed or stopped.

    details: Flower's words on it.
    """

    status: str
    ending: str
    details: str

    @property
    def over(self) -> bool:
        """Whether nothing more will happen in this run."""
        return self.status == "finished"


class Control:
    """A line to the SuperLink whose own door is at `address` ("127.0.0.1:port").

    Used as a context manager, or closed. Everything raises ChannelError where nobody answers, and
    PeerError where the answer is no.
    """

    def __init__(self, address: str) -> None:
        check_version()
        host, port = parse_address(address)
        if host not in {_LOOPBACK, "localhost"}:
            raise ManifestError(
                f"coordinator.address is {address}; a job is submitted on the coordinator's own "
                "machine: expected 127.0.0.1 and the port that splitlearn coordinator up names"
            )
        self.address = f"{_LOOPBACK}:{port}"
        self._client = ControlHttpClient(f"http://{self.address}", timeout=_DEADLINE_S)

    def start(self, job: Path, *, processes: int = 0) -> int:
        """Submit a run of the job in the file `job`; return its number.

        processes: how many share a batch, in place of the file's `run.processes`; 0: as the file says.
        """
        fab = build_fab()
        request = StartRunRequest(
            fab=fab_to_proto(Fab(fab.digest, fab.content, {})),
            override_config=user_config_to_proto(
                {"job": str(job.resolve()), "processes": processes}
            ),
        )
        answer = self._ask(lambda: self._client.StartRun(request))
        if not answer.HasField("run_id"):
            raise ChannelError(f"the SuperLink at {self.address} took no run; its lines say why")
        return int(answer.run_id)

    def state(self, run: int) -> RunState:
        """How the run stands. Raises PeerError too where the SuperLink knows no such run."""
        answer = self._ask(lambda: self._client.ListRuns(ListRunsRequest(run_id=run)))
        status = answer.run_dict[run].status
        return RunState(status=status.status, ending=status.sub_status, details=status.details)

    def stop(self, run: int) -> None:
        """Have the run end. A run that has ended already is left as it is."""
        try:
            self._ask(lambda: self._client.StopRun(StopRunRequest(run_id=run)))
        except PeerError:
            if not self.state(run).over:
                raise

    def nodes(self) -> dict[str, str]:
        """Each known party, and its node's status: registered, online, offline."""
        answer = self._ask(lambda: self._client.ListNodes(ListNodesRequest()))
        return {
            node.name: node.status
            for node in answer.nodes_info
            if node.status in {"registered", "online", "offline"}
        }

    def follow(self, run: int, say: Callable[[str], None]) -> "Follower":
        """Hand each of the run's lines to `say`, from a thread of its own, until it is closed."""
        return Follower(self.address, run=run, say=say)

    def close(self) -> None:
        """Let go of the line."""
        self._client.close()

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return question()
        except httpx.HTTPStatusError as error:
            raise PeerError(
                f"what answers at {self.address} refuses with status {error.response.status_code}: "
                "another user's coordinator, or its last line says why"
            ) from None
        except (httpx.HTTPError, ValueError) as error:
            raise ChannelError(
                f"no SuperLink answers at {self.address} ({type(error).__name__}); start splitlearn "
                "coordinator up on this machine"
            ) from None


class Follower:
    """The lines of one run, as they come."""

    def __init__(self, address: str, *, run: int, say: Callable[[str], None]) -> None:
        self._client = ControlHttpClient(f"http://{address}", timeout=_DEADLINE_S)
        self._run = run
        self._say = say
        self._thread = threading.Thread(target=self._follow, name="log", daemon=True)
        self._thread.start()

    def close(self, *, within_s: float = 3.0) -> None:
        """Wait for the last lines of a run that is over, not for long, and let go."""
        self._thread.join(within_s)
        self._client.close()
        self._thread.join(within_s)

    def _follow(self) -> None:
        try:
            for answer in self._client.StreamLogs(StreamLogsRequest(run_id=self._run)):
                for line in answer.log_output.splitlines():
                    self._say("".join(c for c in _COLOUR.sub("", line) if c.isprintable()))
        except (httpx.HTTPError, ValueError, RuntimeError, AttributeError):
            # The state of the run is asked for by other means; its lines are for people.
            return

"""Three organisations on one machine, for tests: a clinic that trains, and a gpuhost and a farm that
host a part of the layers between each. Built of the same pieces as `organisations`.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.federation import make_identity
from tests.integration.organisations import (
    COMPUTE,
    JOB,
    Process,
    Starter,
    settings,
)
from tests.jobs import a_port
from tests.link import LinkProxy

__all__ = ["PARTIES", "Arranged", "Chain", "arranged", "run_undisturbed"]

PARTIES = ("gpuhost", "farm")
_CHAIN = """\
[[chain]]
party = "farm"
first = 2
{reach}
"""
_NEIGHBOURS = {
    "gpuhost": '[[neighbour]]\nparty = "farm"\nlisten = "127.0.0.1:{port}"\n',
    "farm": '[[neighbour]]\nparty = "gpuhost"\ndial = "127.0.0.1:{port}"\n',
}
_DELAY_S = 0.005


class Chain:
    """Three parties' files in one folder, a link to each host, and whoever is at work. Close it.

    farm_listens: else the farm dials, and the clinic listens for it. direct: the gpuhost sends to the farm
    itself, which dials it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        inputs: Path,
        starter: Starter,
        farm_listens: bool = True,
        direct: bool = False,
    ) -> None:
        self.folder = folder / "three"
        self.run = self.folder / "clinic/run"
        self.logs = {
            "gpuhost": (self.run / "audit", self.folder / "gpuhost/runs/clinic-ward/audit"),
            "farm": (self.run / "audit-farm", self.folder / "farm/runs/clinic-ward/audit"),
        }
        # What the two say to each other, as each has it.
        self.hop = (
            self.folder / "gpuhost/runs/clinic-ward/audit-farm",
            self.folder / "farm/runs/clinic-ward/audit-gpuhost",
        )
        self.links = {party: LinkProxy(("127.0.0.1", 9), delay_s=_DELAY_S) for party in PARTIES}
        self._outputs = folder / "outputs"
        self._starter, self._farm_listens = starter, farm_listens
        self._started: list[Process] = []
        self._outputs.mkdir()
        self.folder.mkdir()
        make_identity(self.folder, "clinic", "trusted")
        given = settings(inputs)
        dial = {party: f'dial = "{link.address}"' for party, link in self.links.items()}
        listen = 'listen = "127.0.0.1:0"'
        job = JOB.format(**given, reach=dial["gpuhost"])
        job += _CHAIN.format(reach=dial["farm"] if farm_listens else listen)
        job += "direct = true\n" if direct else ""
        (self.folder / "job.toml").write_text(job)
        port = a_port()
        for party in PARTIES:
            make_identity(self.folder, party, "compute")
            reach = listen if self.listens(party) else dial[party]
            text = COMPUTE.format(**given, party=party, reach=reach)
            if direct:
                text = text.replace("/compute.toml", "/compute-direct.toml")
                text += _NEIGHBOURS[party].format(port=port)
            (self.folder / f"{party}.toml").write_text(text)

    def listens(self, party: str) -> bool:
        """Whether this party waits until it is dialled."""
        return party == "gpuhost" or (party == "farm" and self._farm_listens)

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.kill()
        for link in self.links.values():
            link.close()

    def host(self, party: str, *, runs: int = 1) -> Process:
        """Start a compute party."""
        process = self._start(party, "compute", f"{party}.toml", "--runs", str(runs))
        if self.listens(party):
            self.links[party].retarget(("127.0.0.1", process.port()))
        return process

    def clinic(self, command: str = "train", *more: str) -> Process:
        """Start the trusted party."""
        process = self._start("clinic", "trusted", command, "job.toml", *more)
        if not self._farm_listens:
            self.links["farm"].retarget(("127.0.0.1", process.port()))
        return process

    def metrics(self) -> dict[str, object]:
        """What the trusted party's metrics.json says."""
        found: dict[str, object] = json.loads((self.run / "metrics.json").read_text())
        return found

    def _start(self, party: str, *arguments: str) -> Process:
        output = self._outputs / f"{len(self._started)}-{party}.txt"
        process = self._starter.start(*arguments, folder=self.folder, output=output)
        self._started.append(process)
        return process


# Makes a chain that is closed at a test's end.
Arranged = Callable[..., Chain]


@contextmanager
def run_undisturbed(chain: Chain) -> Iterator[Chain]:
    """A whole run that nobody disturbs, evaluated and exported; the chain is closed afterwards."""
    try:
        hosts = [chain.host(party, runs=3) for party in PARTIES]
        for command in (("train",), ("evaluate",), ("export", "--to", "model")):
            clinic = chain.clinic(*command)
            assert clinic.wait() == 0, clinic.said + "".join(host.said for host in hosts)
        for host in hosts:
            assert host.wait() == 0, host.said
        yield chain
    finally:
        chain.close()


@contextmanager
def arranged(folder: Path, *, inputs: Path, starter: Starter) -> Iterator[Arranged]:
    """What a test makes its chains by."""
    made: list[Chain] = []

    def make(**how: bool) -> Chain:
        made.append(Chain(folder, inputs=inputs, starter=starter, **how))
        return made[-1]

    yield make
    for chain in made:
        chain.close()

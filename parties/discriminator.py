"""The discriminator as Flower knows it: a ServerApp that conducts one job, from where it stands.

Started by the SuperLink, in a process of its own, for each run that splitlearn pretrain submits.
"""

import importlib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from splitlearn.coordination.claims import claimed
from splitlearn.coordination.endings import CONDUCTING, failure
from splitlearn.coordination.messages import number_of
from splitlearn.coordination.summon import GridSummon, Summon
from splitlearn.errors import ManifestError, SplitLearnError
from splitlearn.manifest import load_pretrain

__all__ = ["app"]

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the job whose file the run names; what stops it is told to whoever submitted it."""
    try:
        named = context.run_config.get("job")
        if not isinstance(named, str) or not named:
            raise ManifestError("this run names no job; use splitlearn pretrain JOB.toml")
        job = Path(named)
        folder = load_pretrain(job).run.folder
        folder.mkdir(parents=True, exist_ok=True)
        with claimed(
            folder / CONDUCTING,
            otherwise=f"another process conducts the job in {folder}; wait until it has ended",
        ):
            _conduct(job, GridSummon(grid), processes=number_of(context.run_config, "processes"))
    except SplitLearnError as error:
        raise failure(error) from None


def _conduct(job: Path, summon: Summon, *, processes: int) -> None:
    conduct = importlib.import_module("parties.discriminating").conduct
    conduct(job, summon, processes=processes)

"""A finished run put together again as one model on disk, with adapters beside it where there are any."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from splitlearn.engine.job.prepare import Prepared
from splitlearn.manifest import Job
from splitlearn.split import (
    GROUPS,
    adapt,
    build_trunk,
    fold,
    freeze,
    freeze_trunk,
    load_trained,
    load_weights,
    merged,
    save_adapters,
    save_merged,
    tap,
    trained_state,
    trunk_blocks,
    trunk_groups,
)
from splitlearn.split.merge import joined_trunk

__all__ = ["ADAPTERS", "save_run"]

# The subfolder of an export that is peft's own.
ADAPTERS = "adapters"


def save_run(folder: Path, *, job: Job, prepared: Prepared, state: Mapping[str, Tensor]) -> None:
    """Writes the merged model of a run to a new folder.

    prepared: its local part trained. state: the trunk's weights by name, trained where they train.
    Adapters are added to the weights that they stand beside; alone they are written in peft's format
    to a subfolder, unless a low-rank cut makes the base model another one than peft would load.
    ManifestError if the folder holds another export or cannot be written.
    """
    cut, lora = prepared.cut, prepared.run.offer.detail.lora
    trunk = joined_trunk(
        [build_trunk(hop.offer.model, cut=hop.offer.cut) for hop in prepared.run.hops]
    )
    if prepared.run.offer.detail.side is not None:
        trunk = tap(trunk, prepared.run.offer.detail.side, bases={})
    for group in GROUPS:
        names = trunk_groups(trunk)[group]
        load_weights(trunk, {name: state[name] for name in names}, group=group)
    if lora is not None:
        adapt(trunk_blocks(trunk), lora)
        freeze_trunk(trunk, mode="lora")
        load_trained(trunk, {name: state[name] for name in trained_state(trunk)})
    whole = merged(prepared.model, trunk=trunk.to(prepared.model.device), cut=cut)
    if lora is not None:
        if not cut.narrow:
            freeze(whole, cut=cut, mode="lora", train_bottom=job.cut.train_bottom)
            path = job.model.path
            base = None if Path(path).is_absolute() else path
            save_adapters(folder / ADAPTERS, model=whole, spec=lora, base=base)
        fold(whole)
    save_merged(folder, model=whole, cut=cut, tokenizer=prepared.data.tokenizer)

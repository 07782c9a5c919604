"""What a job's mode adds to a model that has been cut: adapters, or a network beside the trunk.

The same calls serve the whole model of an unsplit run, so that both train the same weights.
"""

from transformers import PreTrainedModel

from splitlearn.manifest import Job
from splitlearn.split import Cut, adapt, blocks_of, taps_of, targets_in
from splitlearn.split.anatomy import family_of
from splitlearn.wire.messages import LoraSpec, SideSpec

__all__ = ["adapt_own", "lora_of", "side_of"]


def lora_of(job: Job, model: PreTrainedModel, cut: Cut) -> LoraSpec | None:
    """The adapters that the job asks for, as an offer names them; None in other modes.

    model: whole, factored, without adapters. ManifestError if there is no place for any.
    """
    if job.cut.mode != "lora":
        return None
    table = job.cut.lora
    blocks = blocks_of(model, cut=cut, where="trunk", train_bottom=False)
    if not blocks:
        raise job.fault(
            "cut.lora", "finds no whole layer at the peer; give it one more, or cut without sft"
        )
    return LoraSpec(
        rank=table.rank,
        alpha=table.alpha,
        dropout=table.dropout,
        targets=targets_in(blocks[min(blocks)], which=table.targets),
        seed=job.run.seed,
    )


def adapt_own(job: Job, model: PreTrainedModel, cut: Cut, lora: LoraSpec) -> None:
    """Put the adapters in that belong into a local part, or into a whole model."""
    where, train_bottom = job.cut.lora.where, job.cut.train_bottom
    adapt(blocks_of(model, cut=cut, where=where, train_bottom=train_bottom), lora)


def side_of(job: Job, model: PreTrainedModel, cut: Cut) -> SideSpec | None:
    """The taps that the job asks for, as an offer names them; None in other modes.

    ManifestError for a decoder: the network's tokens see those after them, too.
    """
    if job.cut.mode != "side":
        return None
    if family_of(model).causal:
        raise job.fault(
            "cut.mode",
            f'is "side", whose network sees the tokens that this {model.config.model_type} model is to '
            'say; of a decoder it takes "features", "lora" or "full"',
        )
    if not cut.whole:
        raise job.fault("cut.side", "finds no whole layer at the peer; give it one more")
    return SideSpec(taps=taps_of(cut, count=job.cut.side.taps), rank=job.cut.side.rank)

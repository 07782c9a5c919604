"""The trunk as a module, for people who have a loop of their own, such as transformers' Trainer.

Forward and backward cross the gate like the engine's: an autograd function sends the activation and
waits for the output, and on the way back sends the gradient and waits for the one by the input. One
micro-batch is under way at a time. What the peer trains, it trains by the offer's optimiser and
schedule; checkpoints of the caller's side are the caller's.
"""

# B batch, T padded length, D width at the cut

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from splitlearn.engine.payloads.coders import Phase
from splitlearn.engine.payloads.crossing import crosses
from splitlearn.engine.payloads.kept import Kept
from splitlearn.engine.trusted.line import Line, Peer
from splitlearn.engine.trusted.run import TrustedRun
from splitlearn.errors import ManifestError, SessionError
from splitlearn.roles import Kind
from splitlearn.split import mask_of, remote_stage
from splitlearn.tasks import Batch
from splitlearn.wire.messages import StepTensor

__all__ = ["RemoteTrunk"]


class RemoteTrunk(nn.Module):
    """Stands in the local model where the trunk was. Call `open`, train, `save` at will, then `close`.

    Call `end` whatever happened: it closes the log's account of the conversation. A peer that comes
    back as a new process raises PeerRestarted out of the loop; go on from a checkpoint with a new one.
    """

    def __init__(
        self, run: TrustedRun, peer: Peer, *, folder: Path, micro_batches: int = 1
    ) -> None:
        """Takes the place of the remote stage in `run.local`.

        folder: for rows that codecs keep. micro_batches: forwards and backwards of one optimiser step,
        the same in every step. ManifestError for a run that needs the engine's own loop.
        """
        super().__init__()
        self._check(run)
        self.run = run
        self._line = Line(
            run.hops[0],
            peer,
            packed=run.packed,
            noise=None,
            deadline_s=run.deadline_s,
            overlap=run.overlap,
            kept=Kept(folder, limit_bytes=run.cache_bytes),
            linking=run.linking,
        )
        self._of, self._next = micro_batches, 0
        self._batch: Batch | None = None
        self.step = 0
        local = run.local
        remote_stage(local).exchange = self
        local.register_forward_pre_hook(self._note, with_kwargs=True)

    def open(self, *, step: int = 0) -> None:
        """Agree on the job, and on going on after `step` steps, of which the peer holds a checkpoint.

        SessionError if it does not.
        """
        self._line.begin((step,))
        accept = self._line.accepted()
        if step and step not in accept.held:
            raise SessionError(
                f"{self._line.name} holds checkpoints {accept.held} of this run and not {step}; go on "
                "from one that both have"
            )
        for _ in self._line.send_weights(accept):
            pass
        self._line.resume(step)
        self._line.ready()
        self.step, self._next = step, 0

    def forward(self, h_BTD: Tensor) -> Tensor:
        """(B, T, entrance) to (B, T, exit): a training step's if gradients are on in training mode."""
        batch = self._batch
        assert batch is not None, "the remote trunk runs inside its local model only"
        if not self._next:
            self._line.talk.settle_if_due()
        training = self.training and torch.is_grad_enabled()
        i, of = (self._next, self._of) if training else (0, 1)
        phase: Phase = "train" if training else "evaluate"
        place = self._line.tensors.place(batch, i, of, phase=phase, step=self.step)
        if not training or not self.run.offer.trains_trunk:
            h_BTD = self._across(h_BTD, batch, place)
            if training:
                self._done(place)
            return h_BTD
        self._next = i + 1
        # The bottom may be frozen: then it is this that asks for a backward.
        asks = torch.zeros((), requires_grad=True)
        return cast(Tensor, _Crossing.apply(h_BTD, asks, self, batch, place))

    def save(self) -> None:
        """Have the peer keep a checkpoint of the steps done so far. Between two steps."""
        self._line.save(self.step)
        self._line.saved()

    def close(self, *, fetch: bool = False) -> dict[str, Tensor]:
        """Say goodbye; with `fetch`, take the trunk's trained weights along (none if frozen)."""
        trunk: dict[str, Tensor] = {}
        self._line.finish(fetch=fetch)
        for _ in self._line.parting(trunk):
            pass
        return trunk

    def end(self, error: BaseException | None = None) -> None:
        """Close the log's account of the conversation; call it once, whatever happened."""
        self._line.end(error)

    def _across(self, h_BTD: Tensor, batch: Batch, place: StepTensor) -> Tensor:
        tensors = self._line.tensors
        tensors.send(Kind.ACTIVATION, h_BTD.float(), batch, place)
        return tensors.receive(Kind.OUTPUT, batch, place).to(h_BTD.device)

    def _back(self, g_BTD: Tensor, batch: Batch, place: StepTensor) -> Tensor | None:
        tensors = self._line.tensors
        tensors.send(Kind.GRADIENT, g_BTD.float().contiguous(), batch, place)
        back = None
        if self.run.offer.returns_input_gradient:
            back = tensors.receive(Kind.INPUT_GRADIENT, batch, place).to(g_BTD.device)
        self._done(place)
        return back

    def _done(self, place: StepTensor) -> None:
        self._next = place.micro_batch + 1
        if self._next == self._of:
            self.step, self._next = place.step + 1, 0
            self._line.talk.flush()

    def _note(self, _: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
        """What the gate needs to know about the batch that the model is called with."""
        if args or "input_ids" not in kwargs:
            raise ManifestError(
                "a model with a remote trunk is called by keyword, with input_ids among them: the gate "
                "compares what leaves with the ids"
            )
        ids = kwargs["input_ids"].cpu()
        mask = kwargs.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask.cpu()
        lengths = tuple(mask.sum(1).tolist())
        if not torch.equal(mask.bool(), mask_of(lengths, width=ids.shape[1])):
            raise ManifestError(
                "a model with a remote trunk takes batches padded on the right only; set the "
                'tokenizer\'s padding_side to "right"'
            )
        labels = {n: kwargs[n].cpu() for n in _LABELS if kwargs.get(n) is not None}
        inputs = {"input_ids": ids, "attention_mask": mask}
        self._batch = Batch(inputs, labels, lengths, items=len(lengths))

    @staticmethod
    def _check(run: TrustedRun) -> None:
        for asks, what in (
            (run.further, "has several compute parties"),
            (run.offer.schedule.staleness, "has schedule.staleness"),
            (run.noise, "has privacy.gradient_noise, which only our own loop adds"),
            (run.clip_norm, "has optimiser.clip_norm, which only our own loop does"),
            (run.offer.detail.repeats, "keeps outputs; take cut.cache = false"),
            (
                crosses(run.offer),
                "has a decoder's layers at the peer, which get its encoder's output, too",
            ),
        ):
            if asks:
                raise ManifestError(f"the run {what}; it cannot go through a remote trunk")


class _Crossing(torch.autograd.Function):
    """One micro-batch there and back."""

    @staticmethod
    def forward(
        ctx: Any,
        h_BTD: Tensor,
        _: Tensor,
        trunk: RemoteTrunk,
        batch: Batch,
        place: StepTensor,
    ) -> Tensor:
        ctx.journey = (trunk, batch, place)
        return trunk._across(h_BTD, batch, place)  # noqa: SLF001 - one class in two pieces

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        trunk, batch, place = ctx.journey
        back = trunk._back(gradients[0], batch, place)  # noqa: SLF001 - as above
        return back, None, None, None, None


_LABELS = ("labels", "start_positions", "end_positions")

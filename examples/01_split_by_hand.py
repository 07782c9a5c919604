"""Split a model by hand: the smallest possible split learning, in one process and without a wire.

A transformers encoder is cut at two layers. The clinic keeps the bottom (embeddings and first layers)
and the top (last layers, head, labels and loss); the trunk, the layers between, could be anybody's.
Only two tensors cross each cut: the hidden state on the way up, its gradient on the way down.

    python examples/01_split_by_hand.py

What you should see: the split model's logits and gradients are those of the whole model, to the last
bit. Splitting changes where the sums are done, not the sums.
"""

# B batch, T tokens, D width

import copy

import torch
from transformers import BertConfig, BertForSequenceClassification

from splitlearn.split import Cut, factor, remote_stage, split

torch.manual_seed(0)
torch.set_num_threads(1)  # the order of additions, so the last bits, depend on the threads

# A BERT of four layers with random weights: nothing to download. A real one works the same way.
config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.0,  # dropout draws random numbers; without it there is one right answer
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config).train()
whole = copy.deepcopy(model)

# Two sentences of 6 and 4 tokens, the second one padded, and their labels.
lengths = (6, 4)
inputs = {
    "input_ids": torch.randint(5, 100, (2, 6)),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
}
labels = torch.tensor([0, 1])

# Cut so that layers 1 and 2 are the trunk. `factor` would put low-rank bottlenecks in place; this cut
# has none, so it changes nothing. `split` moves the trunk out and leaves a remote stage in its place.
cut = Cut(1, 3)
local, trunk = split(factor(model, cut=cut, bases={}), cut=cut)
print("the clinic holds  ", sum(p.numel() for p in local.parameters()), "weights")
print("the trunk holds   ", sum(p.numel() for p in trunk.parameters()), "weights")

# What crosses the cuts, kept here to be looked at.
crossing: dict[str, torch.Tensor] = {}


def exchange(h_BTD: torch.Tensor) -> torch.Tensor:
    """What the remote stage calls in the middle of the local model's forward.

    In a real run the hidden state passes the gate, travels, and the trunk's output comes back. Each
    side cuts its graph (`detach`): no autograd reaches across a wire.
    """
    crossing["bottom out"] = h_BTD
    crossing["trunk in"] = h_BTD.detach().requires_grad_()
    crossing["trunk out"] = trunk(crossing["trunk in"], lengths=lengths)
    crossing["top in"] = crossing["trunk out"].detach().requires_grad_()
    return crossing["top in"]


remote_stage(local).exchange = exchange

# Forward: bottom, trunk, top. The local model is an ordinary transformers model, loss included.
output = local(**inputs, labels=labels)

# Backward, in three pieces, each started with the gradient that the one above it handed down.
output.loss.backward()  # the top, at the clinic
crossing["trunk out"].backward(crossing["top in"].grad)  # the trunk, at the compute party
crossing["bottom out"].backward(crossing["trunk in"].grad)  # the bottom, at the clinic

# The same in one go, with the whole model.
expected = whole(**inputs, labels=labels)
expected.loss.backward()

print("logits, split     ", output.logits.tolist())
print("logits, whole     ", expected.logits.tolist())
assert torch.equal(output.logits, expected.logits)

# The trunk's weights are called "layers.1. ..." after their place in the whole model.
split_grads = {name: p.grad for name, p in trunk.named_parameters()}
for name, p in whole.bert.encoder.layer.named_parameters():
    if (key := f"layers.{name}") in split_grads:
        assert torch.equal(split_grads[key], p.grad), name
for name in ("bert.embeddings.word_embeddings.weight", "classifier.weight"):
    assert torch.equal(local.get_parameter(name).grad, whole.get_parameter(name).grad), name
print("gradients          equal to the bit, in bottom, trunk and top")
print("crossed a cut     ", tuple(crossing["bottom out"].shape), "floats, each way, at each cut")

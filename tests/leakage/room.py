"""A tiny vocabulary, texts and bottoms whose answers are known, for the tests of this room."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2Model

from splitlearn.leakage.known import Known, Seen, Truth
from splitlearn.split.anatomy import base_of
from splitlearn.split.rows import mask_of
from tests.tiny import VOCABULARY, tiny_model

SPECIAL = frozenset({0, 1})
BEGIN, END = 0, 1
WIDTH = 32

Forward = Callable[[Tensor, tuple[int, ...]], Tensor]


def texts(
    count: int, *, seed: int, words: int = VOCABULARY, length: int = 8
) -> tuple[tuple[int, ...], ...]:
    """Texts between a begin and an end; lower ids are more frequent."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 / torch.arange(1, words - 1).double()
    made = []
    for index in range(count):
        size = 2 + index % (length - 1)
        inner = 2 + torch.multinomial(weights, size, replacement=True, generator=generator)
        made.append((BEGIN, *inner.tolist(), END))
    return tuple(made)


def embeddings(*, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, WIDTH, generator=generator)


def known_of(forward: Forward, embeddings_VD: Tensor, **more: object) -> Known:
    """An attacker with 120 texts of its own, at full width unless `more` says otherwise."""
    fields = {"expand": lambda rows_NR: rows_NR, "text": texts(120, seed=1), "special": SPECIAL}
    return Known(forward=forward, embeddings_VD=embeddings_VD, **(fields | more))  # type: ignore[arg-type]


def looked_up(embeddings_VD: Tensor, *, rotation_DD: Tensor | None = None) -> Forward:
    """A bottom that is the embedding alone, turned by a matrix."""
    rows_VD = embeddings_VD if rotation_DD is None else embeddings_VD @ rotation_DD

    def forward(ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
        return rows_VD[ids_BT][mask_of(lengths, width=ids_BT.shape[1])]

    return forward


def noise(*, columns: int = WIDTH) -> Forward:
    """A bottom whose rows say nothing about the text."""
    generator = torch.Generator().manual_seed(9)
    return lambda _, lengths: torch.randn(sum(lengths), columns, generator=generator)


def victim(known: Known, *, count: int = 24, seed: int = 2) -> tuple[Seen, Truth]:
    """Texts that the attacker does not have, as rows and as ids."""
    ids = texts(count, seed=seed)
    rows = [known.forward(torch.tensor([text]), (len(text),)) for text in ids]
    return Seen(torch.cat(rows), tuple(map(len, ids))), Truth(ids)


def encoder(*, layers: int, rank: int = WIDTH) -> Known:
    """The bottom of a tiny BERT, its states turned and cut to `rank` columns."""
    model = base_of(tiny_model("bert", layers=max(layers, 1))).eval()
    if layers == 0:
        model.encoder.layer = torch.nn.ModuleList()
    basis_RD = torch.linalg.qr(embeddings(seed=4)[:WIDTH])[0][:rank]
    words_VD = model.get_input_embeddings().weight.detach()

    def forward(ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
        mask_BT = mask_of(lengths, width=ids_BT.shape[1])
        with torch.no_grad():
            h_BTD = model(input_ids=ids_BT, attention_mask=mask_BT.long()).last_hidden_state
        return h_BTD[mask_BT] @ basis_RD.T

    def table(position: Tensor) -> Tensor:
        place_V1 = position.reshape(1, 1).expand(VOCABULARY, 1)
        with torch.no_grad():
            h_V1D = model.embeddings(
                input_ids=torch.arange(VOCABULARY)[:, None], position_ids=place_V1
            )
        return h_V1D[:, 0] @ basis_RD.T

    return known_of(
        forward,
        words_VD,
        expand=lambda rows_NR: rows_NR @ basis_RD,
        table=table if layers == 0 else None,
    )


def decoder(*, rank: int) -> Known:
    """A tiny causal model, its states cut to `rank` columns."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=40, n_embd=WIDTH, n_layer=2, n_head=4, attn_pdrop=0.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = GPT2Model(config).eval()
    basis_RD = torch.linalg.qr(embeddings(seed=4)[:WIDTH])[0][:rank]

    def forward(ids_BT: Tensor, lengths: tuple[int, ...]) -> Tensor:
        mask_BT = mask_of(lengths, width=ids_BT.shape[1])
        with torch.no_grad():
            h_BTD = model(input_ids=ids_BT, attention_mask=mask_BT.long()).last_hidden_state
        return h_BTD[mask_BT] @ basis_RD.T

    return known_of(
        forward,
        model.wte.weight.detach(),
        expand=lambda rows_NR: rows_NR @ basis_RD,
        causal=True,
    )

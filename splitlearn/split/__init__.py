"""Cuts a transformers model at two layers, and puts it together again.

This room knows models and tensors; it never sends, receives, logs or trains. What a peer says about
a model is checked against a table before anything is built from it.
"""

from splitlearn.split.blueprint import build_trunk, trunk_model
from splitlearn.split.bottleneck import PcaBasis, fit_pca
from splitlearn.split.cut import Bottleneck, Cut, cut_of, place, spec_of
from splitlearn.split.families import FAMILIES
from splitlearn.split.freeze import freeze, freeze_trunk, set_training
from splitlearn.split.lora import (
    adapt,
    blocks_of,
    check_targets,
    fold,
    load_trained,
    save_adapters,
    targets_in,
    trained_state,
    trunk_blocks,
)
from splitlearn.split.memory import own_memory
from splitlearn.split.merge import load_merged, merged, save_merged
from splitlearn.split.rows import mask_of, pack, reads_padding, unpack
from splitlearn.split.side import put_side, tap, taps_of
from splitlearn.split.stage import (
    RemoteStage,
    factor,
    remote_stage,
    remote_stages,
    split,
    split_chain,
)
from splitlearn.split.trunk import Trunk
from splitlearn.split.weights import (
    GROUPS,
    digest,
    load_layers_from_folder,
    load_weights,
    trunk_groups,
    trunk_state,
)

__all__ = [
    "FAMILIES",
    "GROUPS",
    "Bottleneck",
    "Cut",
    "PcaBasis",
    "RemoteStage",
    "Trunk",
    "adapt",
    "blocks_of",
    "build_trunk",
    "check_targets",
    "cut_of",
    "digest",
    "factor",
    "fit_pca",
    "fold",
    "freeze",
    "freeze_trunk",
    "load_layers_from_folder",
    "load_merged",
    "load_trained",
    "load_weights",
    "mask_of",
    "merged",
    "own_memory",
    "pack",
    "place",
    "put_side",
    "reads_padding",
    "remote_stage",
    "remote_stages",
    "save_adapters",
    "save_merged",
    "set_training",
    "spec_of",
    "split",
    "split_chain",
    "tap",
    "taps_of",
    "targets_in",
    "trained_state",
    "trunk_blocks",
    "trunk_groups",
    "trunk_model",
    "trunk_state",
    "unpack",
]

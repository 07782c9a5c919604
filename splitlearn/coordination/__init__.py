"""Rounds over nodes that come and go: Flower's SuperLink behind our guard, and its SuperNodes.

Carries round descriptors and reports only. Ids, tensors and text never pass here. Modules whose names
begin with `flower_`, and `control`, `summon`, `messages`, `answering` and `local_grid`, import flwr and
are imported where they are needed.
"""

from splitlearn.coordination.version import FLOWER, check_version

__all__ = ["FLOWER", "check_version"]

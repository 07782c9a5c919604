"""The logs of hops beside a log: whether each is the one whose heads this log names.

In a direct chain a compute party keeps a log of what it says to each neighbour, in `audit-NAME` beside the
one of what it says to the trusted party. The trusted party never sees those, but countersigns the log in
which their heads stand. Reads only.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from splitlearn.audit.findings import Exit, Findings
from splitlearn.audit.log import SEGMENTS, read_lines
from splitlearn.audit.merkle import Tree
from splitlearn.audit.records import HopHead
from splitlearn.errors import AuditError, IdentityError
from splitlearn.identity import PartyName

__all__ = ["check_hops", "hop_log"]


def hop_log(log: Path, *, neighbour: str) -> Path:
    """The folder of the log of a hop to the party of that name, beside the log in folder `log`."""
    return log.parent / f"{log.name}-{neighbour}"


def check_hops(
    log: Path, heads: Sequence[tuple[int, HopHead]], *, key: str | None, findings: Findings
) -> None:
    """Hold the heads that the log in folder `log` names against the logs that lie beside it.

    heads: with the index of their record. key: of the log, whose owner signs both. A log that was not handed
    over is not missed: the record stands, and it can be asked for.
    """
    trees: dict[Path, Tree | None] = {}
    newest: Mapping[str, int] = {head.neighbour: index for index, head in heads}
    for index, head in heads:
        if key is not None and head.key != key:
            findings.note(
                Exit.INTEGRITY, "hop", "the log of a hop is under another key", record=index
            )
            continue
        try:
            folder = hop_log(log, neighbour=PartyName.parse(head.neighbour).party)
        except IdentityError as error:
            findings.note(Exit.INTEGRITY, "hop", str(error), record=index)
            continue
        if folder not in trees:
            trees[folder] = _tree(folder)
        tree = trees[folder]
        if tree is None:
            if newest[head.neighbour] == index:
                findings.note(
                    Exit.CLEAN,
                    "hop",
                    f"the log of what was said with {head.neighbour}, {head.size} records and more, is not "
                    "beside this one",
                    record=index,
                )
        elif head.size > tree.size or tree.root_at(head.size).hex() != head.root:
            findings.note(
                Exit.INTEGRITY,
                "hop",
                f"the head of {head.size} records of the log of what was said with {head.neighbour} is not "
                f"that of {folder.name}: that log was changed, or cut short",
                record=index,
            )


def _tree(folder: Path) -> Tree | None:
    """The tree over a log's lines, as far as they can be read; None where there is no such log."""
    if not (folder / SEGMENTS).is_dir():
        return None
    tree = Tree()
    try:
        for line, whole in read_lines(folder):
            if whole:
                tree.append(line)
    except AuditError:  # what is missing shows in the heads
        pass
    return tree

"""Two processes of one party, as torchrun starts them, against one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splitlearn.errors import ManifestError
from splitlearn.pretrain.discriminator import DiscriminatorTrainer
from splitlearn.pretrain.generator import GeneratorTrainer
from splitlearn.pretrain.ranks import Ranks
from splitlearn.wire.ids import IdBatch
from tests.babble import discriminator_settings, generator_settings, text_file, vocabulary

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
from splitlearn.pretrain.ranks import Ranks
from tests.pretrain import test_ranks
ranks = Ranks.found()
found = getattr(test_ranks, sys.argv[2])(Path(sys.argv[1]), ranks=ranks)
if ranks.leads:
    Path(sys.argv[1], "found.json").write_text(json.dumps(found))
"""


def generate(folder: Path, *, ranks: Ranks) -> list[object]:
    """Steps of a generator with a load and a skip among them: losses, ids and what is held out."""
    maker = GeneratorTrainer.build(
        generator_settings(folder / "language-0.txt", dropout=0.0, batch=3),
        vocabulary=vocabulary(),
        seed=1,
        scratch=folder / f"scratch-{ranks.world}-{ranks.rank}",
        ranks=ranks,
    )
    if not ranks.leads:
        maker.follow()
        return []
    made = [maker.step(), maker.step()]
    maker.save(folder / f"maker-{ranks.world}")
    maker.step()
    maker.load(folder / f"maker-{ranks.world}")
    maker.skip_to(maker.index + 3)
    made += [maker.step(), (maker.held_out(0), maker.held_out_loss(1)[1])]
    maker.export(folder / f"export-{ranks.world}")
    maker.close()
    return [(batch.ids.tolist(), loss) for batch, loss in made]


def discriminate(folder: Path, *, ranks: Ranks) -> list[object]:
    """Steps of a discriminator, one of them on a single example: what each reports, and a score."""
    judge = DiscriminatorTrainer.build(
        discriminator_settings(dropout=0.0), vocabulary=vocabulary(), seed=2, ranks=ranks
    )
    if not ranks.leads:
        judge.follow()
        return []
    steps = [judge.train(batch(number, lengths)) for number, lengths in enumerate(LENGTHS)]
    judge.save(folder / f"judge-{ranks.world}")
    judge.train(batch(8, (9, 9)))
    judge.load(folder / f"judge-{ranks.world}")
    steps.append(judge.train(batch(9, (12, 5))))
    score = judge.score([batch(10, (20, 20))])
    judge.export(folder / f"judged-{ranks.world}")
    judge.close()
    told = [[step.loss, step.accuracy, step.replaced, step.tokens] for step in steps]
    return [*told, [score.auc, score.loss, judge.steps]]


LENGTHS = ((10, 24, 3), (7,), (4, 4, 4, 4))


def batch(number: int, lengths: tuple[int, ...]) -> IdBatch:
    rng = np.random.default_rng(number)
    count = sum(lengths)
    ids = rng.integers(5, vocabulary().size, count).astype(np.int32)
    return IdBatch(ids, rng.random(count) < 0.3, lengths)


def flat(found: object) -> list[float]:
    if isinstance(found, list | tuple):
        return [number for each in found for number in flat(each)]
    assert isinstance(found, int | float)
    return [found]


@pytest.mark.parametrize("work", [generate, discriminate], ids=lambda work: work.__name__)
def test_two_processes_train_as_one_up_to_rounding(tmp_path: Path, work) -> None:
    text_file(tmp_path)
    alone = work(tmp_path, ranks=Ranks())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--no-python", sys.executable, "-c", PROGRAM),
            *(str(tmp_path), work.__name__),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    together = json.loads((tmp_path / "found.json").read_text())
    assert len(together) == len(alone) >= 4
    assert flat(together) == pytest.approx(flat(alone), rel=1e-4, abs=1e-6)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"maker-1", "maker-2", "export-2"} <= names or {
        "judge-1",
        "judge-2",
        "judged-2",
    } <= names


def test_a_process_alone_is_rank_0_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = Ranks.found()
    assert (alone.world, alone.rank, alone.leads) == (1, 0, True)
    assert list(alone.share(5)) == [0, 1, 2, 3, 4]
    alone.tell(1, np.zeros(0, dtype=np.int64))
    alone.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8])
def test_every_row_has_one_rank_and_shares_are_even(count: int) -> None:
    shares = [Ranks(world=3, rank=rank).share(count) for rank in range(3)]
    assert [row for share in shares for row in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_processes_that_cannot_meet_are_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ManifestError, match="start all with torchrun"):
        Ranks.found()

"""Figures of a run under way, read over HTTP as Prometheus does."""

import socket
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from parties import compute, trusted
from parties.curves import Curves
from parties.exporting import Figures, exporting
from splitlearn.channel import pair
from splitlearn.engine.events import Answered, Began, RolledBack, StepDone, Watched, all_of
from splitlearn.engine.trusted.engine import TrustedEngine
from splitlearn.errors import ManifestError
from splitlearn.roles import Kind
from splitlearn.split.cut import Cut
from tests.exactness.test_engine import batches
from tests.jobs import LABELS, NOWHERE, a_port, make_clinic, make_gpuhost
from tests.rig import (
    ComputeThread,
    compute_party,
    trusted_engine,
    trusted_party,
    trusted_run,
)
from tests.tiny import tiny_model

Found = dict[tuple[str, ...], float]


def page(port: int, *, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def figures_in(families: Iterable[Metric]) -> Found:
    """By name, and where there are several, kind and direction."""
    return {
        (
            sample.name.removeprefix("splitlearn_"),
            *(sample.labels[label] for label in ("kind", "direction") if sample.labels),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def figures_on(text: str) -> Found:
    return figures_in(text_string_to_metric_families(text))


def moved(engine: TrustedEngine) -> Found:
    found: Found = {}
    for direction, counts in (("out", engine.sent), ("in", engine.received)):
        found |= {("bytes_total", kind.value, direction): size for kind, size in counts.items()}
    return found


def test_both_parties_figures_are_those_of_their_engines(tmp_path: Path) -> None:
    model = tiny_model("bert")
    run = trusted_run(model, cut=Cut(1, 3), total=3, every=2, clip_norm=1.0)
    ours, theirs = pair()
    done: list[StepDone] = []
    ports = a_port(), a_port()
    with (
        exporting(ports[0], host="127.0.0.1") as own,
        exporting(ports[1], host="127.0.0.1") as other,
    ):
        thread = ComputeThread(compute_party(tmp_path), theirs, observe=other)
        other.follow(thread.engine)
        note = lambda e: done.append(e) if isinstance(e, StepDone) else None  # noqa: E731
        engine = trusted_engine(run, trusted_party(tmp_path), ours, observe=all_of(own, note))
        own.follow(engine)
        engine.train(lambda step: batches(model, step))
        engine.finish()
        thread.join(20)
        found, theirs_found = figures_on(page(ports[0])), figures_on(page(ports[1]))
    bytes_moved = moved(engine)
    assert found == {
        ("step",): 3,
        ("loss",): engine.losses[-1],
        ("gradient_norm",): done[-1].norm,
        ("checkpoint_step",): 3,
        ("steps_total",): 3,
        ("step_seconds_total",): pytest.approx(sum(engine.step_s)),
        ("conversations_total",): 1,
        **bytes_moved,
    }
    assert theirs_found.keys() == {
        key for key in found if key[0] not in {"loss", "gradient_norm"}
    } - (bytes_moved.keys()) | {
        (name, kind, {"in": "out", "out": "in"}[way]) for name, kind, way in bytes_moved
    }
    assert theirs_found["bytes_total", "norm", "out"] == found["bytes_total", "norm", "in"]
    assert theirs_found["step",] == 3
    with pytest.raises(OSError, match="refused"):
        page(ports[0])


def test_engines_add_up_and_what_happened_again_is_counted_again() -> None:
    clock = iter((1.0, 3.0, 10.0, 11.0))
    figures = Figures(clock=lambda: next(clock))

    class Engine:
        sent, received = Counter({Kind.OFFER: 5}), Counter({Kind.ACCEPT: 3})

    for _ in range(2):
        figures.follow(Engine())
        figures(Began(4, "clinic"))
        figures(Answered(4))
        figures(Answered(5))
    figures(RolledBack("clinic"))
    figures(Watched(6, 0.5))
    found = figures_in(figures.collect())
    assert found == {
        ("step",): 6,
        ("score",): 0.5,
        ("conversations_total",): 2,
        ("rollbacks_total",): 1,
        ("steps_total",): 2,
        ("step_seconds_total",): 3.0,
        ("bytes_total", "offer", "out"): 10,
        ("bytes_total", "accept", "in"): 6,
    }


def test_without_a_port_nothing_listens_and_nothing_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    threads = threading.active_count()
    with exporting(0, host="127.0.0.1") as figures:
        figures(Answered(0))
        assert threading.active_count() == threads
    with (
        pytest.raises(ManifestError, match=r"install splitlearn\[prometheus\]"),
        exporting(a_port(), host="127.0.0.1"),
    ):
        pass


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ManifestError, match=f"--metrics-port {port} cannot be had"),
            exporting(port, host="127.0.0.1"),
        ):
            pass


def test_the_commands_show_their_figures_on_the_loopback_address_and_write_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read once the run is scored, while both parties are at work; clipping by job.toml on the way."""
    job = make_clinic(tmp_path, {"optimiser": {"clip_norm": 1e-3}})
    port, own, theirs = a_port(), a_port(), a_port()
    settings = make_gpuhost(tmp_path, port=port)
    told = job.read_text(encoding="utf-8").replace(f":{NOWHERE}", f":{port}")
    job.write_text(told, encoding="utf-8")
    pages: list[str] = []
    scores = Curves.scores

    def reading(self: Curves, found: dict[str, float], *, step: int) -> None:
        pages.extend(page(each) for each in (own, theirs))
        addresses = {
            connection.split()[1]
            for connection in Path("/proc/net/tcp").read_text().splitlines()
            if connection.split()[1].endswith((f":{own:04X}", f":{theirs:04X}"))
        }
        assert {address.split(":")[0] for address in addresses} == {"0100007F"}
        scores(self, found, step=step)

    monkeypatch.setattr(Curves, "scores", reading)
    thread = threading.Thread(
        target=compute.compute,
        args=(settings,),
        kwargs={"runs": 1, "threads": 1, "metrics_port": theirs},
    )
    thread.start()
    trusted.train(job, threads=1, metrics_port=own)
    thread.join(60)
    assert not thread.is_alive()
    for text in pages:
        found = figures_on(text)
        assert found["step",] == 3
        assert found["bytes_total", "scale", "out" if text is pages[0] else "in"] > 0
        assert not [
            word for word in ("clinic", "gpuhost", "films", "story", *LABELS) if word in text
        ]
    assert figures_on(pages[0])["gradient_norm",] > 1e-3
    assert ("loss",) not in figures_on(pages[1])
    assert list((job.parent / "run" / "scalars").iterdir())

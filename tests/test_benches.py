"""Benchmarks are run by hand, so what they import is held here: it moves, and nobody would see."""

from importlib import import_module
from pathlib import Path

import pytest

BENCHES = sorted(path.stem for path in (Path(__file__).parent / "bench").glob("*.py"))


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_finds_what_it_imports_and_says_how_it_is_run(name: str) -> None:
    bench = import_module(f"tests.bench.{name}")
    assert callable(bench.main)
    said = bench.__doc__ or ""
    assert f"python -m tests.bench.{name}" in said or f"make bench BENCH={name}" in said

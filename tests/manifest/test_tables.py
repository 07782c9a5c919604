import pytest
from pydantic import BaseModel, ValidationError

from splitlearn.manifest import coding, cuts, tables
from splitlearn.manifest.coding import CodecTable
from splitlearn.manifest.cuts import CutTable
from splitlearn.manifest.hops import INNER
from splitlearn.manifest.tables import OptimiserTable, ScheduleTable
from splitlearn.roles import Kind
from splitlearn.wire.messages import CodecSpec, OptimiserSpec, ScheduleSpec

ALL = [
    getattr(file, name)
    for file in (tables, cuts, coding)
    for name in file.__all__
    if name.endswith("Table")
]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.__name__)
def test_every_key_says_what_it_takes(table: type[BaseModel]) -> None:
    for key, field in table.model_fields.items():
        inner = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert inner or field.description, f"{table.__name__}.{key}"


def test_codec_optimiser_and_schedule_have_the_keys_that_the_wire_has() -> None:
    kinds = set(CodecTable.model_fields) - {"public_text", "cache_mb", "stage"} - INNER
    assert kinds == set(CodecSpec.__struct_fields__)
    assert kinds < {kind.value for kind in Kind}
    # The peer multiplies by a factor that it is told: it has no use for the bound.
    assert set(OptimiserTable.model_fields) - {"clip_norm"} == set(OptimiserSpec.__struct_fields__)
    shared = {"name", "warmup_steps", "staleness"}
    assert shared <= set(ScheduleTable.model_fields) & set(ScheduleSpec.__struct_fields__)


def test_defaults_are_those_that_send_least_of_what_labels_decide() -> None:
    cut = CutTable()
    assert (cut.bottom, cut.top, cut.mode, cut.train_bottom) == (2, -1, "features", False)
    assert (cut.lower.method, cut.upper.method) == ("none", "none")


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (CutTable, {"bottom": 0}),
        (CutTable, {"mode": "some"}),
        (OptimiserTable, {"learning_rate": 0.0}),
        (OptimiserTable, {"beta1": 1.0}),
        (ScheduleTable, {"batch_size": 4097}),
        (ScheduleTable, {"epochs": 0}),
    ],
)
def test_values_out_of_bounds_are_refused(
    table: type[BaseModel], values: dict[str, object]
) -> None:
    with pytest.raises(ValidationError):
        table.model_validate(values)

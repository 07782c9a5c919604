"""The rules of the house that no other tool checks: floors, doors, test files, forbidden calls.

Everything here reads the source; only the last tests start a process, to see what an import pulls in.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted(path for room in ("splitlearn", "parties") for path in (ROOT / room).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# Top floor first. A file may import from its own room and from rooms on lower floors.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"parties"}),
    frozenset({"engine"}),
    frozenset({"gate"}),
    frozenset({"report"}),
    frozenset(
        {"session", "channel", "codecs", "split", "pipeline", "policy", "audit", "tasks", "leakage"}
        | {"emulator", "pretrain", "coordination", "translation"}
    ),
    frozenset({"identity", "data"}),
    frozenset({"wire", "manifest"}),
    frozenset({"roles"}),
    frozenset({"errors"}),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# Each outside library lives in a few rooms. What is not listed may be imported anywhere.
ROOMS_OF = {
    "torch": {"codecs", "split", "engine", "tasks", "leakage", "pretrain", "translation"},
    "transformers": {"data", "split", "tasks", "engine", "pretrain", "translation"},
    "datasets": {"data", "tasks", "pretrain", "translation"},
    "tokenizers": {"pretrain"},
    "sacrebleu": {"translation"},
    "flwr": {"coordination", "parties"},
    "uvicorn": {"coordination"},
    "httpx": {"coordination"},
    "grpc": {"channel"},
    "cryptography": {"identity", "audit", "report"},
    "jinja2": {"report"},
    "markupsafe": {"report"},
    "greenlet": {"engine"},
    "peft": {"split"},
    "zstandard": {"codecs"},
    "typer": {"parties"},
    "rich": {"parties"},
    "prometheus_client": {"parties"},
}

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {("torch", "load"), ("torch", "save"), ("torch", "hub")}
FORBIDDEN_SWITCHES = {"allow_pickle", "trust_remote_code"}
VAGUE_NAMES = {"utils", "util", "common", "core", "misc", "helpers", "manager"}

# A file splits at about 400 lines; a few more are no reason.
MAX_LINES = 450


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    """`splitlearn/wire/frames.py` -> wire; `splitlearn/roles.py` -> roles; `parties/x.py` -> parties."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "parties" if parts[0] == "parties" else parts[1]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere in the file, but for type checking only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def needs_test(path: Path) -> bool:
    return path.name not in {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("path", [path for path in LIBRARY if needs_test(path)], ids=ids)
def test_every_library_file_has_its_test_file(path: Path) -> None:
    below = path.relative_to(ROOT)
    folder = Path("parties") if below.parts[0] == "parties" else Path(*below.parts[1:-1])
    wanted = ROOT / "tests" / folder / f"test_{path.name}"
    assert wanted.is_file(), f"{below} has no {wanted.relative_to(ROOT)}"


def test_every_test_file_of_a_room_mirrors_a_library_file() -> None:
    rooms = {room_of(path) for path in LIBRARY if path.parent.name != "splitlearn"}
    for path in TESTS:
        folder = path.parent.relative_to(ROOT / "tests")
        if not path.name.startswith("test_") or not folder.parts or folder.parts[0] not in rooms:
            continue
        name = path.name.removeprefix("test_")
        base = ROOT if folder.parts[0] == "parties" else ROOT / "splitlearn"
        wanted = base / folder / ("__init__.py" if name == "init.py" else name)
        assert wanted.is_file(), f"{ids(path)} tests {ids(wanted)}, which does not exist"


@pytest.mark.parametrize("path", LIBRARY, ids=ids)
def test_no_file_imports_up_or_sideways(path: Path) -> None:
    if path == ROOT / "splitlearn" / "__init__.py":
        return
    room = room_of(path)
    assert room in FLOOR, (
        f"{room} stands on no floor; add it here, in pyproject.toml and ARCHITECTURE.md"
    )
    for module in imports(parsed(path)):
        parts = module.split(".")
        if parts[0] == "parties":
            other = "parties"
        elif parts[0] == "splitlearn" and len(parts) > 1 and parts[1] in FLOOR:
            other = parts[1]
        else:
            continue
        assert other == room or FLOOR[other] > FLOOR[room], f"{ids(path)} imports {module}"


@pytest.mark.parametrize("path", LIBRARY, ids=ids)
def test_every_outside_library_stays_in_its_rooms(path: Path) -> None:
    if path == ROOT / "splitlearn" / "__init__.py":
        return
    for module in imports(parsed(path)):
        rooms = ROOMS_OF.get(module.split(".")[0])
        assert rooms is None or room_of(path) in rooms, f"{ids(path)} imports {module}"


@pytest.mark.parametrize("path", [*LIBRARY, *TESTS, *EXAMPLES], ids=ids)
def test_nothing_reads_or_writes_a_pickle_or_runs_code_of_a_model(path: Path) -> None:
    tree = parsed(path)
    for module in imports(tree):
        assert module.split(".")[0] not in FORBIDDEN_MODULES, f"{ids(path)} imports {module}"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                assert (module, name) not in FORBIDDEN_CALLS, f"{ids(path)} uses {module}.{name}"
            case ast.keyword(arg=str(switch), value=ast.Constant(value=True)):
                assert switch not in FORBIDDEN_SWITCHES, f"{ids(path)} sets {switch}"


@pytest.mark.parametrize("path", LIBRARY, ids=ids)
def test_only_the_gate_makes_a_released_payload(path: Path) -> None:
    if room_of(path) == "gate":
        return
    made = [call.lineno for call in calls(parsed(path)) if called_name(call) == "Released"]
    assert not made, f"{ids(path)} makes a Released in line {made[0]}; only the gate may"


def test_the_gate_does_make_it() -> None:
    gate = ROOT / "splitlearn" / "gate" / "door.py"
    assert "Released" in {called_name(call) for call in calls(parsed(gate))}


@pytest.mark.parametrize("path", LIBRARY, ids=ids)
def test_every_file_says_what_it_is_for_and_what_it_offers(path: Path) -> None:
    tree = parsed(path)
    if not tree.body and path.name == "__init__.py":
        return
    assert ast.get_docstring(tree), f"{ids(path)} begins with no docstring"
    if path.is_relative_to(ROOT / "splitlearn"):
        offered = [
            node
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        assert offered, f"{ids(path)} has no __all__"


@pytest.mark.parametrize("path", LIBRARY, ids=ids)
def test_no_file_has_a_vague_name_or_outgrows_a_reading(path: Path) -> None:
    assert path.stem not in VAGUE_NAMES
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{ids(path)} has {lines} lines; it wants to be two files"


@pytest.mark.parametrize("path", TESTS, ids=ids)
def test_no_test_is_skipped_or_expected_to_fail(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"skip", "skipif", "xfail", "importorskip"}, ids(path)


@pytest.mark.parametrize(
    "module",
    ["parties.cli", "parties.auditor", "splitlearn", "splitlearn.audit", "splitlearn.channel"],
)
def test_import_pulls_in_no_torch(module: str) -> None:
    program = (
        f"import sys, {module}; "
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

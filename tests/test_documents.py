"""What the documents name exists: modules, files, tests, commands and their options, links, keys.

A name in a document is a copy of a name in the code; this is where the copies are compared.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.core import TyperGroup

from parties.cli import app
from splitlearn.manifest import load_compute, load_job
from splitlearn.policy import load as load_policy

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(
    path
    for folder in ("splitlearn", "parties", "examples")
    for path in (ROOT / folder).rglob("*.py")
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
DOTTED = re.compile(r"\b(?:splitlearn|parties)(?:\.[A-Za-z_]\w*)+")
TEST = re.compile(r"tests/[\w/]+\.py(?:::(\w+))?")
FILE = re.compile(r"(?:[\w.-]+/)*(?:[\w.*-]+\.(?:py|md|toml|yml|lock)|[\w.-]+/|Makefile|LICENSE)")
# First parts of paths that the code writes at run time: they are not in the tree.
WRITTEN = {
    "out",
    "run",
    "log",
    "checkpoints",
    "alpha",
    "beta",
    "gamma",
    "federation",
    ".venv",
    ".uv",
}

# Words that promise what nobody here can keep.
PROMISES = (
    "zero leakage",
    "irreversible embedding",
    "encrypted activation",
    "anonymised",
    "anonymized",
)
PLACES = (f"{ROOT.parent}/", f"{Path.home()}/", "/tmp/")


class Code(NamedTuple):
    """A piece of code in a document. language is empty for a span in running text."""

    language: str
    text: str


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def codes(path: Path) -> tuple[Code, ...]:
    text = path.read_text(encoding="utf-8")
    fenced = [Code(match[1] or "text", match[2]) for match in FENCE.finditer(text)]
    spans = [Code("", match[1]) for match in SPAN.finditer(FENCE.sub("", text))]
    return (*fenced, *spans)


def commands(path: Path, program: str) -> Iterator[list[str]]:
    """Command lines of `program` in a document, split into words."""
    for code in codes(path):
        if code.language not in {"", "sh", "bash", "console"}:
            continue
        for line in code.text.replace("\\\n", " ").splitlines():
            bare = line.strip().removeprefix("$ ")
            if re.match(rf"(?:\S+/)?{program}(?:\s|$)", bare):
                yield shlex.split(bare, comments=True)[1:]


@cache
def top_level(path: Path) -> dict[str, ast.stmt | None]:
    """Names that a file defines, imports or offers."""
    names: dict[str, ast.stmt | None] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names[node.name] = node
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    names[ast.unparse(target)] = node
                    if ast.unparse(target) == "__all__":
                        names.update(dict.fromkeys(ast.literal_eval(value)))
            case ast.AnnAssign(target=target):
                names[ast.unparse(target)] = node
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names.update({alias.asname or alias.name: None for alias in aliases})
    return names


def exists_in_code(dotted: str) -> bool:
    """Whether `splitlearn.wire.frames.Frame.raw` leads to something, without importing it."""
    folder, parts = ROOT, dotted.split(".")
    while parts and (folder / parts[0]).is_dir():
        folder, parts = folder / parts[0], parts[1:]
    if parts and (folder / f"{parts[0]}.py").is_file():
        file, parts = folder / f"{parts[0]}.py", parts[1:]
    else:
        file = folder / "__init__.py"
    if not parts:
        return file.is_file()
    names = top_level(file)
    if parts[0] not in names:
        return False
    node = names[parts[0]]
    return len(parts) == 1 or (isinstance(node, ast.ClassDef) and parts[1] in ast.unparse(node))


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_module_and_name_in_a_document_exists(path: Path) -> None:
    for code in codes(path):
        for match in DOTTED.finditer(code.text):
            if code.language in {"", "python"} and not re.search(r"[/@]", code.text):
                assert exists_in_code(match[0]), f"{ids(path)} names {match[0]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_file_in_a_document_exists(path: Path) -> None:
    for code in codes(path):
        if code.language or not FILE.fullmatch(code.text):
            continue
        name = code.text
        if name.split("/")[0] in WRITTEN or name == "job.toml":
            continue
        places = (ROOT, ROOT / "splitlearn", ROOT / "parties", path.parent)
        assert any(list(place.glob(name)) for place in places), f"{ids(path)} names {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_test_in_a_document_exists(path: Path) -> None:
    for match in TEST.finditer(path.read_text(encoding="utf-8")):
        file = ROOT / match[0].split("::")[0]
        assert file.is_file(), f"{ids(path)} names {match[0]}"
        assert match[1] is None or match[1] in top_level(file), f"{ids(path)} names {match[0]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_command_and_option_in_a_document_exists(path: Path) -> None:
    for line in commands(path, "splitlearn"):
        words = line
        command = typer.main.get_command(app)
        while words and isinstance(command, TyperGroup):
            name, words = words[0], words[1:]
            assert name in command.commands or name == "--help", f"{ids(path)}: no {name}"
            command = command.commands.get(name, command)
        options = {"--help", *(option for each in command.params for option in each.opts)}
        for word in words:
            if word.startswith("--"):
                assert word.split("=")[0] in options, f"{ids(path)}: {command.name} has no {word}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_make_target_in_a_document_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(path, "make"):
        for word in words:
            assert "=" in word or word in targets, f"{ids(path)} calls make {word}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_every_link_in_a_document_leads_somewhere(path: Path) -> None:
    for match in LINK.finditer(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if match[1].startswith(("https://", "mailto:")):
            continue
        target, _, anchor = match[1].partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{ids(path)} links to {match[1]}"
        if anchor:
            headings = HEADING.findall(file.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in slugs, f"{ids(path)} links to {match[1]}"


@pytest.mark.parametrize("path", [*DOCUMENTS, *SOURCES], ids=ids)
def test_nothing_promises_what_cannot_be_kept(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").lower().split())
    assert not [promise for promise in PROMISES if promise in text]


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_no_document_names_a_folder_of_one_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not [place for place in PLACES if place in text]


@pytest.mark.parametrize(("name", "load"), [("job.toml", load_job), ("compute.toml", load_compute)])
def test_the_readme_shows_a_settings_file_that_is_accepted(
    name: str, load: Callable[[Path], object], tmp_path: Path
) -> None:
    blocks = [code.text for code in codes(ROOT / "README.md") if code.language == "toml"]
    (text,) = [block for block in blocks if block.startswith(f"# {name}\n")]
    for needed in re.findall(r'"([\w-]+\.(?:csv|txt|toml))"', text):
        (tmp_path / needed).write_text("")
    (tmp_path / name).write_text(text)
    load(tmp_path / name)


@pytest.mark.parametrize("name", ["strict", "standard", "demo", "compute"])
def test_the_policies_that_the_readme_names_are_accepted(name: str) -> None:
    path = f"parties/policies/{name}.toml"
    assert path in (ROOT / "README.md").read_text(encoding="utf-8")
    load_policy(ROOT / path)


def test_every_security_claim_names_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    claimed = re.split(r"^## ", text, flags=re.MULTILINE)
    section = next(part for part in claimed if part.startswith("Claimed"))
    claims = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    assert claims
    for claim in claims:
        assert TEST.search(claim), claim


def test_decisions_are_numbered_without_gaps_and_say_what_was_decided() -> None:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))
    for file in files:
        assert file.read_text(encoding="utf-8").startswith(f"# {file.name[:4]} "), file.name


def test_glossary_has_each_word_once_and_in_order() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = [match.lower() for match in re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)]
    assert words == sorted(set(words))

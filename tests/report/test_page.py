"""The page as text: one file, all panels, nothing that runs or fetches, whatever the log says."""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from splitlearn.report import Document, render
from splitlearn.report.words import LIMITS
from tests.report.logs import (
    DENIED,
    KEY,
    OPEN,
    PAYLOAD,
    Talk,
    document,
    eventful,
    leakage,
    opened,
    write,
)
from tests.report.test_collect import noisy

PANELS = {
    "findings",
    "traffic",
    "steps",
    "policy",
    "heads",
    "leakage",
    "noise",
    "gaps",
    "runs",
    "limits",
}
VOID = {"meta", "link", "br", "hr", "img", "input"}
# Everything a document may fetch something with, or run something with.
FETCHING = {"script", "iframe", "img", "object", "embed", "audio", "video", "form", "base", "image"}


class Reader(HTMLParser):
    """Takes a page apart and holds that its elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(attrs) == len(dict(attrs)), attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(eventful(tmp_path_factory.mktemp("report") / "audit", steps=20))


def test_a_page_has_every_panel_named_and_led_to(whole: Document) -> None:
    tags = Reader(render(whole)).tags
    sections = {each["id"]: each["aria-labelledby"] for tag, each in tags if tag == "section"}
    assert set(sections) == PANELS
    ids = [each["id"] for _, each in tags if "id" in each]
    assert len(ids) == len(set(ids))
    assert set(sections.values()) <= set(ids)
    assert {each["href"] for tag, each in tags if tag == "a"} == {f"#{panel}" for panel in PANELS}


def test_a_page_fetches_nothing_and_runs_nothing(whole: Document) -> None:
    page = render(whole)
    tags = Reader(page).tags
    assert not FETCHING & {tag for tag, _ in tags}
    assert not [name for _, each in tags for name in each if name.startswith("on")]
    links = [each[name] for _, each in tags for name in ("href", "src") if name in each]
    assert all(str(link).startswith("#") or link == "data:," for link in links)
    assert "url(" not in page
    assert "@import" not in page
    (policy,) = [each for tag, each in tags if each.get("http-equiv")]
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_every_table_has_a_caption_and_every_cell_its_label(whole: Document) -> None:
    tags = Reader(render(whole)).tags
    names = [tag for tag, _ in tags]
    assert names.count("table") == names.count("caption") > 5
    assert all(each.get("data-label") for tag, each in tags if tag == "td")
    assert all(each.get("scope") == "col" for tag, each in tags if tag == "th")


def test_a_page_says_what_happened(whole: Document) -> None:
    text = Reader(render(whole)).text
    for needed in (
        "Policy finding",
        "content.finite",
        "countersigned by a peer",
        "over the limit of the policy",
        "On what run news really sent",
        "on request",
        "The process before had ended by surprise",
        "No noise is on record.",
    ):
        assert needed in text, needed
    for limit in LIMITS:
        assert " ".join(limit.split()) in text


def test_the_same_document_is_the_same_page(whole: Document) -> None:
    assert render(whole) == render(whole)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("clean", "Clean"),
        ("integrity", "Does not add up"),
        ("mismatch", "The logs differ"),
        ("uncheckable", "Cannot be told"),
    ],
)
def test_a_verdict_is_an_icon_and_words(whole: Document, name: str, word: str) -> None:
    verdict = msgspec.structs.replace(whole.verdict, name=name)
    page = render(msgspec.structs.replace(whole, verdict=verdict))
    banner = page[page.index('<div class="verdict') :]
    banner = banner[: banner.index("</div>")]
    assert f'<div class="verdict {name}" role="status">' in banner
    assert "<svg" in banner
    assert f"<strong>{word}</strong>" in banner
    assert f"<title>{word}: audit of" in page


def test_a_key_from_the_folder_is_a_caution(whole: Document, tmp_path: Path) -> None:
    caution = "The key was not given from outside."
    assert caution not in Reader(render(whole)).text
    folder = write(tmp_path, OPEN)
    assert caution in Reader(render(document(folder, key=None))).text
    (folder / "verifier.key").unlink()
    assert "were checked with no key" in Reader(render(document(folder, key=None))).text


def test_what_was_not_measured_is_said_to_be_that(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        talk = Talk(log)
        talk.steps(range(2))
        talk.close()
    text = Reader(render(document(tmp_path))).text
    for needed in (
        "Not measured.",
        "No noise is on record. None of the 4 payloads",
        "No gap is on record.",
        "No redaction is on record.",
        "Nothing was refused.",
        "No peer has swapped heads",
    ):
        assert needed in text, needed


def test_an_empty_folder_has_a_page_with_every_panel(tmp_path: Path) -> None:
    reader = Reader(render(document(tmp_path, key=None)))
    assert {each["id"] for tag, each in reader.tags if tag == "section"} == PANELS
    for needed in ("No message is on record.", "No run is on record.", "unknown origin"):
        assert needed in reader.text


def test_noise_is_told_with_its_bound_or_with_why_there_is_none(tmp_path: Path) -> None:
    text = Reader(render(noisy(tmp_path / "a"))).text
    assert "Run news: epsilon 2.341 at delta 1e-05" in text
    assert "over at most 3 releases" in text
    assert "covers no text" in text
    text = Reader(render(noisy(tmp_path / "b", bare=2))).text
    assert "Run news: no bound. 2 gradients left without noise" in text


def test_an_attack_on_nothing_and_on_labels_alone_is_told_as_that(tmp_path: Path) -> None:
    nothing = msgspec.structs.replace(
        leakage(at="preflight", tokens=None, limit=None), run="another"
    )
    labels = msgspec.structs.replace(
        nothing, labels=0.5, labels_by="", labels_limit=0.4, run="third"
    )
    text = Reader(render(document(write(tmp_path, nothing, labels)))).text
    assert "Before run another, on public text" in text
    assert "there was nothing to attack" in text
    assert "AUC 0.50, labels told apart" in text
    assert text.count("over the limit of the policy") == 1


NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "{{ 7 * 7 }}{% raw %}",
    "</style><script>",
    "\N{RIGHT-TO-LEFT OVERRIDE}evil\N{ZERO WIDTH SPACE}\x1b[31m\x00",
    "]]>--><!--",
    "A" * 5_000,
    "&lt;b&gt;&amp;",
)


@pytest.mark.parametrize("nasty", NASTY)
def test_hostile_texts_in_a_log_stay_texts(tmp_path: Path, nasty: str) -> None:
    party = msgspec.structs.replace(OPEN.peer, id=nasty)
    with opened(tmp_path) as log:
        log.append(
            msgspec.structs.replace(
                OPEN,
                run=nasty,
                peer=party,
                me=party,
                software=nasty,
                purpose=nasty,
                mode=nasty,
                model=nasty,
                bottlenecks=(nasty, nasty),
                codecs={nasty: nasty, "activation": nasty},
            )
        )
        log.append(
            msgspec.structs.replace(PAYLOAD, run=nasty, peer=nasty, rules=(nasty,), codec=nasty)
        )
        log.append(msgspec.structs.replace(DENIED, run=nasty, peer=nasty, rule=nasty))
    page = render(document(tmp_path, key=KEY))
    reader = Reader(page)
    assert not FETCHING & {tag for tag, _ in reader.tags}
    assert not [name for _, each in reader.tags for name in each if name.startswith("on")]
    assert {each["id"] for tag, each in reader.tags if tag == "section"} == PANELS
    assert not re.search("[\u200b\u202e\x00\x1b]", page)
    assert len(page) < 200_000
    if nasty.startswith("{{"):
        assert "{{ 7 * 7 }}" in reader.text

"""The report as a real browser shows it: on a screen, on a phone, on paper, in the dark.

Needs a Chromium on PATH; where there is none, `make test` leaves these tests out and says so.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from splitlearn.report import render
from tests.report.browser import BROWSERS, Browser, Page, find_browser
from tests.report.logs import DENIED, KEY, PAYLOAD, Talk, document, eventful, opened
from tests.report.test_page import NASTY, PANELS

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    assert path is not None, f"no {' or '.join(BROWSERS)} on PATH: run with -m 'not browser'"
    with Browser.start(path, profile=tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def eventful_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with refusals, a gap, a redaction and everything else."""
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    path.write_text(render(document(eventful(folder / "audit"))), encoding="utf-8")
    return path


def check(page: Page, *, width: int) -> None:
    """What holds for every page in every window."""
    # A phone that finds a page too wide makes its window wider.
    wide = page.ask(WIDEST.replace("WIDTH", str(width)))
    assert page.ask("innerWidth") == width, wide
    assert page.ask("document.scrollingElement.scrollWidth") <= width, wide
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:")] == page.requests[:1]
    assert page.requests[0].startswith("file:")
    shown = page.ask(
        "[...document.querySelectorAll('section')].filter(s => s.offsetHeight > 60).map(s => s.id)"
    )
    assert set(shown) == PANELS


# Which elements reach beyond the window, for who has to mend it.
WIDEST = """[...document.querySelectorAll('body *')]
  .filter(e => e.getBoundingClientRect().right > WIDTH + 0.5)
  .map(e => e.tagName + '.' + e.getAttribute('class') + ' ' + e.textContent.slice(0, 40)).slice(0, 9)
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 768, 390, 360])
def test_a_page_fits_its_window_and_asks_for_nothing(
    browser: Browser, eventful_page: Path, width: int, scheme: str
) -> None:
    check(browser.open(eventful_page, width=width, scheme=scheme), width=width)


def test_what_happened_is_in_the_tables(browser: Browser, eventful_page: Path) -> None:
    page = browser.open(eventful_page, width=1280)
    captions = page.ask("[...document.querySelectorAll('caption')].map(c => c.textContent)")
    assert {"Messages that were stopped", "Gaps", "Redactions", "Heads swapped with peers"} <= set(
        captions
    )
    drawn = page.ask(
        "[...document.querySelectorAll('svg.chart')].map(c => c.getBBox().width > 200)"
    )
    assert drawn == [True] * 5


def test_dark_and_light_differ_and_both_can_be_read(browser: Browser, eventful_page: Path) -> None:
    """Contrast of running text against its ground, by the formula of WCAG 2: at least 4.5."""
    grounds = set()
    for scheme in ("light", "dark"):
        page = browser.open(eventful_page, width=1280, scheme=scheme)
        grounds.add(page.ask("getComputedStyle(document.body).backgroundColor"))
        for chosen in ("section p", "td small", "caption", ".verdict strong", ".exit-1", "nav a"):
            ratio = page.ask(CONTRAST.replace("CHOSEN", chosen))
            assert ratio >= 4.5, (scheme, chosen, ratio)
    assert len(grounds) == 2


CONTRAST = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = c => c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let element = document.querySelector("CHOSEN"), ground = element;
  const ink = light(rgb(getComputedStyle(element).color));
  let solid = rgb(getComputedStyle(document.body).backgroundColor);
  for (; ground; ground = ground.parentElement) {
    const found = rgb(getComputedStyle(ground).backgroundColor);
    if (found.length === 3) { solid = found; break; }
  }
  const paper = light(solid);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
})()"""


def test_a_page_prints(browser: Browser, eventful_page: Path) -> None:
    pdf = browser.open(eventful_page, width=1280, scheme="dark").pdf()
    assert pdf.startswith(b"%PDF-")
    sheets = re.findall(rb"/Type\s*/Page\b", pdf)
    assert 3 <= len(sheets) <= 12
    boxes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^]]*)\]", pdf)}
    assert all(abs(w - 595) < 2 and abs(h - 842) < 2 for _, _, w, h in boxes), boxes


def test_an_empty_report_fits_too(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(document(tmp_path, key=None)), encoding="utf-8")
    for width in (1280, 360):
        check(browser.open(path, width=width), width=width)


def test_hostile_texts_neither_run_nor_push_the_page_out(browser: Browser, tmp_path: Path) -> None:
    with opened(tmp_path / "audit") as log:
        talk = Talk(log)
        talk.deny()
        for nasty in (*NASTY, "W" * 160):
            log.append(
                msgspec.structs.replace(PAYLOAD, run=nasty, peer=nasty, rules=(nasty,), step=1)
            )
            log.append(
                msgspec.structs.replace(
                    talk.opened, run=nasty, me=talk.opened.me, model=nasty, software=nasty
                )
            )
            talk.deny(msgspec.structs.replace(DENIED, run=nasty, peer=nasty, rule=nasty))
    path = tmp_path / "report.html"
    path.write_text(render(document(tmp_path / "audit", key=KEY)), encoding="utf-8")
    for width in (1280, 768, 360):
        check(browser.open(path, width=width), width=width)

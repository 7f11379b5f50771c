"""Pages in a real browser: read at three widths, sorted, filtered, pointed at, copied from, left by their links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.report.browser import Browser, chromium
from tests.report.test_index import row, table, write_page
from tests.report.test_report import BASE, BUDGET, ILLEGAL, sweep, trial
from tuner.report.index_files import write_index
from tuner.report.write import report_folder, write_report
from tuner.trials.outcome import Kind, Origin, Status, Trial

PROBLEM = GemmProblem(m=4352, k=3840, n=3072, r=128)
NASTY = "</script><img src=x onerror='window.hurt = true'>"
WIDTHS = (400, 1000, 1600)
# Elements whose text or box does not fit: what is cut off, and what stands out of its card. What moves sideways in its
# place (``.scroll``) may be wider than that.
MISFITS = """
(() => {
  const found = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) found.push(`page ${document.documentElement.scrollWidth}`);
  for (const card of document.querySelectorAll('header, section')) {
    const edge = card.getBoundingClientRect();
    for (const one of card.querySelectorAll('*')) {
      if (one.closest('.scroll, pre, .tip') && !one.matches('.scroll, pre') || one.closest('svg, .uplot')) continue;
      const box = one.getBoundingClientRect();
      if (!box.width || !box.height) continue;
      const name = `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`;
      if (box.right > edge.right + 1 || box.left < edge.left - 1) found.push(`out of its card: ${name}`);
      const style = getComputedStyle(one);
      if (one.scrollWidth > one.clientWidth + 1 && ['hidden', 'clip'].includes(style.overflowX) && one.textContent)
        found.push(`cut off: ${name}`);
    }
    const texts = document.createTreeWalker(card, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      if (texts.currentNode.parentElement.closest('.scroll, pre, svg, .uplot, select')) continue;
      const range = document.createRange();
      range.selectNodeContents(texts.currentNode);
      const right = range.getBoundingClientRect().right;
      if (right > edge.right + 1) found.push(`out of its card: ${texts.currentNode.data}`);
    }
    for (const text of card.querySelectorAll('svg text')) {
      const box = text.getBoundingClientRect(), place = text.closest('svg').getBoundingClientRect();
      const one = text.textContent;
      if (box.right > place.right + 3 || box.left < place.left - 3) found.push(`cut off in its picture: ${one}`);
    }
  }
  return found;
})()
"""


def trials() -> list[Trial]:
    """Thirty of 20.0, 20.5, ... us in a mixed order, the last two failed; 7 is the winner and 0 the default."""
    found = []
    for number in range(30):
        config = BASE.replace(
            num_ab_stage=2 + number % 5,
            raster_order="mn"[number % 2],
            mma_tiler_mn=(256, (64, 128, 192, 256)[number % 4]),
            swizzle_size=(1, 2, 4)[number % 3],
            split_k=1 + number // 10,
        )
        us = 20.0 + 0.5 * ((number - 7) % 30)
        fields = {
            "config": config,
            "kind": Kind.SIMULATED,
            "origin": Origin.SAMPLED if number else Origin.DEFAULT,
        }
        fields["evidence"] = {
            "mma": 0.955 * us,
            "launch": 0.045 * us,
        }  # a part that has no room for its number
        if number >= 28:
            fields |= {"status": Status.COMPILE_FAILED, "reason": NASTY, "kind": None}
        found.append(trial(number, us if number < 28 else None, **fields))
    return found


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a device: three problems with pages, the middle one with thirty trials."""
    results = tmp_path_factory.mktemp("results")
    write_page(results, 256)
    write_page(results, 9000)
    facts = {NASTY: "x" * 400}
    whole = sweep([*trials(), *ILLEGAL], budget=BUDGET, facts=facts)
    write_report(report_folder(results, "b200", PROBLEM), whole)
    measured = row(9000, 30.0, kind=Kind.MEASURED)
    rows = [row(256, 20.0), row(4352, 20.0), measured]
    return write_index(results, "b200", lambda: table(*rows)).parent


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = chromium()
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("pages are tested in Chromium, which is not installed: apt-get install chromium")
        pytest.skip("Chromium is not installed")
    with Browser(program) as one:
        yield one
        assert one.problems == []


@pytest.fixture
def page(device: Path) -> Path:
    return device / "svdquant_gemm" / "4352x3840x3072x128" / "report.html"


def numbers(browser: Browser) -> list[int]:
    return browser.run("[...document.querySelectorAll('#trials tbody tr')].map((row) => +row.dataset.number)")


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_fits(browser: Browser, device: Path, page: Path, width: int) -> None:
    for path in (page, device / "index.html"):
        browser.open(path, width)
        assert browser.run(MISFITS) == []
    browser.open(page, width)
    browser.run("document.querySelector('#wide').click()")  # a column per knob: moves in its place
    assert browser.run(MISFITS) == []
    widths = browser.run(
        "['#convergence canvas', '#coordinates svg', '#trials table'].map((css) => "
        "document.querySelector(css).getBoundingClientRect().width)"
    )
    assert all(one >= 0.4 * width for one in widths), widths  # a wide page is used, a narrow one is filled
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('svg text')].filter((one) => one.closest('.scroll') === null)"
        ".map((one) => one.getBoundingClientRect().height))"
    )
    assert smallest >= 9  # no picture shrinks until it cannot be read


def test_trials_are_sorted(browser: Browser, page: Path) -> None:
    browser.open(page, 1600)
    assert numbers(browser)[:3] == [7, 8, 9]  # by place
    assert len(numbers(browser)) == 20
    browser.click("#more")
    browser.click("#trials th:nth-child(2) button")
    assert numbers(browser) == list(range(30))
    browser.click("#trials th:nth-child(2) button")
    assert numbers(browser) == list(reversed(range(30)))
    browser.run("(() => { const one = document.querySelector('#order select'); one.value = 3;"
                " one.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert numbers(browser)[:2] == [7, 8] and sorted(numbers(browser)[-2:]) == [
        28,
        29,
    ]  # without a time: last


def test_trials_are_filtered_by_words_status_and_value(browser: Browser, page: Path) -> None:
    browser.open(page, 1600)
    browser.type("#controls input[type=search]", "raster_order=n split_k=2")
    assert sorted(numbers(browser)) == [11, 13, 15, 17, 19]
    browser.type("#controls input[type=search]", "compile_failed")
    assert sorted(numbers(browser)) == [28, 29]
    browser.type("#controls input[type=search]", " ")
    browser.click("[data-knob=swizzle_size][data-value='4']")
    assert sorted(numbers(browser)) == [number for number in range(30) if number % 3 == 2]
    drawn = browser.run("[...document.querySelectorAll('.run:not(.off)')].map((one) => +one.dataset.number)")
    assert sorted(drawn) == [number for number in range(28) if number % 3 == 2]
    plotted = browser.run(
        "document.querySelector('#convergence').plotted.points.map((one) => one.one.number)"
    )
    assert sorted(plotted) == sorted(drawn)
    browser.click("#chosen button")
    assert len(numbers(browser)) == 20


def test_charts_and_rows_point_at_one_another(browser: Browser, page: Path) -> None:
    browser.open(page, 1600)
    browser.run("document.querySelector('#convergence').scrollIntoView()")
    at = browser.run("document.querySelector('#convergence').plotted.at(12)")
    browser.mouse("mouseMoved", at["x"], at["y"])
    browser.settle()
    hot = "[...document.querySelectorAll('tr.hot, .run.hot')].map((one) => +one.dataset.number)"
    assert browser.run(hot) == [12, 12]
    assert browser.run("document.querySelector('.tip').textContent").startswith("#12: 22.50 µs simulated")
    for kind in ("mousePressed", "mouseReleased"):
        browser.mouse(kind, at["x"], at["y"])
    browser.settle()
    assert browser.run("document.querySelector('tr.pinned').dataset.number") == "12"
    box = browser.run("(() => { const box = document.querySelector('tr.pinned').getBoundingClientRect();"
                      " return [box.top, box.bottom, innerHeight]; })()")  # fmt: skip
    assert box[0] >= 0 and box[1] <= box[2]  # it was scrolled to


def test_a_config_is_copied(browser: Browser, page: Path) -> None:
    browser.open(page, 1000)
    browser.ask("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click("tr[data-number='9'] button.copy")
    browser.wait("document.querySelector(\"tr[data-number='9'] button.copy\").textContent === 'copied'")
    browser.run(
        "document.body.append(Object.assign(document.createElement('textarea'), {id: 'paste'}));"
        "document.querySelector('#paste').focus()"
    )
    assert browser.run("navigator.clipboard.readText()") == trials()[9].resolved


def test_previous_and_next_problem(browser: Browser, page: Path) -> None:
    """By size: 256, 4352, 9000."""
    browser.open(page, 1000)
    links = "['.previous', '.next'].map((css) => document.querySelector(css)?.textContent ?? null)"
    assert browser.run(links) == ["← svdquant_gemm 256,3840,3072,128", "svdquant_gemm 9000,3840,3072,128 →"]
    browser.click(".next")
    browser.wait("location.href.includes('9000x3840') && document.readyState === 'complete'")
    assert browser.run(links) == ["← svdquant_gemm 4352,3840,3072,128", None]
    browser.click(".way a")
    browser.wait("location.href.endsWith('/b200/index.html') && document.readyState === 'complete'")


def test_index_is_filtered_and_sorted(browser: Browser, device: Path) -> None:
    browser.open(device / "index.html", 1600)
    shown = (
        "[...document.querySelectorAll('#problems tbody tr:not([hidden])')]"
        ".map((row) => row.dataset.sizes.split(' ')[0])"
    )
    assert browser.run(shown) == ["256", "4352", "9000"]
    browser.click("#problems th:nth-child(4) button")
    browser.click("#problems th:nth-child(4) button")
    assert browser.run(shown)[0] == "9000"  # the slowest
    browser.type("#controls input[type=search]", "256")
    assert browser.run(shown) == ["256"]  # a size, not a part of another one: all have 3072
    browser.type("#controls input[type=search]", "4352x3840")
    assert browser.run(shown) == ["4352"]
    browser.type("#controls input[type=search]", " ")
    browser.run("(() => { const one = document.querySelector('#by-kind'); one.value = 'measured';"
                " one.dispatchEvent(new Event('change')); })()")  # fmt: skip
    assert browser.run(shown) == ["9000"]
    assert browser.run("document.querySelector('#count').textContent") == "1 of 3 problems"


def test_what_a_journal_says_is_text(browser: Browser, page: Path) -> None:
    browser.open(page, 1000)
    browser.type("#controls input[type=search]", "compile_failed")
    assert NASTY in browser.run("document.querySelector('#trials').textContent")
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("typeof window.hurt") == "undefined"

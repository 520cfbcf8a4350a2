"""The front page in a real browser: links to boards, what a screen reader finds, contrast, paper, and a phone."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from pages import HOSTILE, drawn, open_at, watch

from attnbench.bench.board.report import (
    Ability,
    AbilityCell,
    AbilityTable,
    BoardSummary,
    Overview,
    Report,
    SummaryGroup,
)

pytest.importorskip("altair", reason="the extra dashboard is not installed")
pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")

from attnbench.dashboards import html

NAMES = ("softmax", "entmax15", HOSTILE)


@pytest.fixture(scope="module")
def reports(report: Report, by_setting: Report, lengths: Report) -> list[Report]:
    """Two boards with a figure of every kind whose text is drawn in its own way."""
    shown = {"variant": "rela", "layers": 1, "heads": 1, "rows": 1, "keys": 1, "tops": (0.5,), "shades": "/w=="}
    whole = replace(
        report, name="lra-text/quick", group="Suite lra", maps=(shown,), settings=by_setting.settings[:1],
        trained=by_setting.trained, suite_scores=by_setting.suite_scores,
    )  # fmt: skip
    return [whole, lengths]


@pytest.fixture(scope="module")
def overview() -> Overview:
    def summary(report: str, title: str, state: str) -> BoardSummary:
        return BoardSummary(
            report=report, title=title, leaders=f"entmax15 and {HOSTILE}", place="rank 1–2", result="96.0 to 97.0 %",
            reference="80.0 %", headline="Better than softmax: entmax15.", newest="2026-01-01", state=state,
            data="data: surrogate" if state.startswith("stale") else "", is_average=False,
        )  # fmt: skip

    cells = (AbilityCell(text="96.0", verdict="better", hint="entmax15: 96"), None, None)
    answer = AbilityTable(
        columns=(
            Ability(title="lra-text", report="lra-text/quick", unit="accuracy, %"),
            Ability(title="recall", report="lra-text/quick", unit="accuracy, %"),
            Ability(title="step", report="sweep", unit="against softmax", is_cost=True),
        ),
        rows=(
            ("softmax", (AbilityCell(text="80.0"), AbilityCell(text="70.0"), AbilityCell(text="1×"))),
            (HOSTILE, cells),
            ("linear", (None, AbilityCell(text="50.0"), None)),
        ),
    )
    lengths = tuple(
        {
            "task": task, "variant": name, "at": at, "value": 60, "low": 50, "high": 70, "trained": 64,
            "name": name if at == 256 else "", "name_at": 60 if at == 256 else None,
        }
        for task in ("recall", "max") for name in NAMES for at in (64, 128, 256)
    )  # fmt: skip
    pareto = tuple(
        {
            "task": "lra-text: accuracy, %", "variant": name, "name": name, "quality": 50 + at, "quality_low": 49 + at,
            "quality_high": 51 + at, "cost": 1 + at, "cost_low": 0.9 + at, "cost_high": 1.1 + at, "on_frontier": True,
        }
        for at, name in enumerate(NAMES)
    )  # fmt: skip
    groups = (
        SummaryGroup(title="Suite lra, preset quick", boards=(summary("lra-text/quick", "lra-text", "new"),)),
        SummaryGroup(title="Cost alone", boards=(summary("sweep", "sweep over lengths", "stale: older version"),)),
    )
    return Overview(
        lead="2 boards <b>.",
        groups=groups,
        quality="accuracy, %",
        by_length=lengths,
        pareto=pareto,
        left_out=("Rest.", ""),
        answer=answer,
    )


@pytest.fixture(scope="module")
def file(reports: list[Report], overview: Overview, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "index.html"
    path.write_text(html.render(reports, overview), encoding="utf-8")
    return path


def test_the_page_opens_with_the_overview_and_each_board_is_one_link_away(page: object) -> None:
    assert page.inner_text("h2:visible") == "Which attention, for what?" and page.inner_text("#lead") == "2 boards <b>."
    assert page.locator("figure").count() == 2 and page.locator("#board").is_hidden()
    rows = page.locator("#groups tbody tr").all_inner_texts()
    assert rows[0].split("\t")[:3] == [
        "lra-text",
        f"entmax15 and {HOSTILE} rank 1–2",
        "96.0 to 97.0 %\nsoftmax 80.0 %\n",
    ]
    assert rows[1].startswith("sweep over lengths\n⚠ data: surrogate")
    assert rows[1].endswith("2026-01-01\nstale: older version")
    answer = page.locator("#answer-table tbody tr")
    assert answer.all_inner_texts() == [
        "softmax\t80.0\t70.0\t1×", f"{HOSTILE}\t96.0\u00a0▲\tnot run\tnot run", "linear\tnot run\t50.0\tnot run",
    ]  # fmt: skip
    assert page.locator("#answer-table td.better").get_attribute("title") == "entmax15: 96"
    assert page.locator("#answer-table td.empty").last.get_attribute("title") == "linear has no Record on step"
    assert page.locator("#asked").is_hidden()
    page.get_by_role("link", name="sweep over lengths").click()
    page.wait_for_selector("#figure-lengths[data-ready]")
    assert "q=sweep" in page.url and page.locator("#overview").is_hidden()
    # a screen reader goes on at the heading of what is new
    assert page.evaluate("document.activeElement.id") == "title"
    assert page.title() == "attnbench: Which attention is right most often on lra-text (quick)?"
    page.go_back()
    drawn(page)
    assert page.locator("#overview").is_visible() and page.evaluate("document.activeElement.id") == "overview-title"
    page.go_forward()
    page.wait_for_selector("#figure-lengths[data-ready]")
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector("#figure-frontiers[data-ready]")
    assert page.locator("#overview").is_visible() and "q=" not in page.url
    assert page.get_attribute("#home", "aria-current") == "page"


def test_a_phone_shows_one_task_and_its_cost_and_no_empty_row(browser: object, file: Path) -> None:
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    open_at(opened, file, "")
    answer = opened.locator("#answer-table tbody tr")
    # the task that tells most from softmax, then the one that is asked for
    assert answer.all_inner_texts() == ["softmax\t80.0\t1×", f"{HOSTILE}\t96.0\u00a0▲\tnot run"]
    opened.select_option("#ability", label="recall")
    assert answer.all_inner_texts() == ["softmax\t70.0\t1×", "linear\t50.0\tnot run"]
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()


def test_an_address_opens_its_board_and_an_unknown_one_the_overview(browser: object, file: Path) -> None:
    opened = browser.new_page()
    open_at(opened, file, "#q=sweep&sort=accuracy&dir=desc")
    assert opened.locator("#figure-lengths").count() == 1
    assert opened.locator("th[aria-sort=descending]").inner_text().startswith("accuracy")
    open_at(opened, file, "#q=none")
    assert opened.locator("#overview").is_visible()
    opened.close()


def test_boards_of_a_suite_stand_together_in_the_list(page: object) -> None:
    groups = page.locator("#report optgroup").evaluate_all("all => all.map(one => one.label)")
    # the titles and the order of the overview
    assert groups == page.locator("#groups h3").all_inner_texts() == ["Suite lra, preset quick", "Cost alone"]
    page.select_option("#report", label="lra-text")
    page.wait_for_selector("#figure-frontier[data-ready]")
    assert page.locator("#board").is_visible() and page.locator("#filtering").is_visible()


def test_all_text_has_a_contrast_of_four_and_a_half(browser: object, file: Path) -> None:
    """By the formula of WCAG 2: each text against the nearest ground that is painted behind it."""
    for scheme in ("light", "dark"):
        opened = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        for state in ("", "#q=lra-text%2Fquick&notes=all&row=softmax"):
            open_at(opened, file, state)
            opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
            found = opened.evaluate(CONTRASTS)
            assert len(found) > 60
            low = sorted((round(ratio, 2), text) for ratio, text in found if ratio < 4.5)
            assert low == [], f"{scheme} {state}"
        opened.close()


CONTRASTS = """() => {
  const brush = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (text) => {
    brush.clearRect(0, 0, 1, 1);
    brush.fillStyle = '#000';
    brush.fillStyle = text;
    brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ratio = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
    if (element.closest('script, svg, .vega-embed > details')) continue;
    found.push([ratio(rgba(getComputedStyle(element).color), ground(element)), element.textContent.slice(0, 60)]);
  }
  for (const text of document.querySelectorAll('svg text')) {
    if (!text.textContent.trim() || !text.checkVisibility()) continue;
    text.scrollIntoView({ block: 'center' });
    const box = text.getBoundingClientRect();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    // the filled squares of a heat map lie below their words, which let no pointer through
    const square = [...text.closest('svg').querySelectorAll('.mark-rect path')].find((path) => {
      const own = path.getBoundingClientRect();
      return own.left <= x && x <= own.right && own.top <= y && y <= own.bottom;
    });
    const behind = square ? rgba(getComputedStyle(square).fill) : ground(text);
    found.push([ratio(rgba(getComputedStyle(text).fill), behind), text.textContent]);
  }
  return found;
}"""


@pytest.mark.parametrize("state", ["", "#q=lra-text%2Fquick"])
def test_what_a_screen_reader_finds(page: object, file: Path, state: str) -> None:
    open_at(page, file, state)
    assert [page.locator(name).count() for name in ("header", "nav[aria-label]", "main", "html[lang=en]")] == [1] * 4
    titles = page.locator("h1:visible, h2:visible, h3:visible, h4:visible")
    levels = titles.evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    # one title, and no level left out
    assert levels[:2] == [1, 2] and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tables = page.locator("table:visible")
    for at in range(tables.count()):
        table = tables.nth(at)
        assert table.locator("caption").inner_text() and table.locator("thead th[scope=col]").count() >= 3
        assert table.locator("tbody th[scope=row]").count() == table.locator("tbody tr").count()
    for figure in page.locator("figure").all():
        assert len(figure.locator("[role=img]").get_attribute("aria-label")) > 40
        assert figure.locator("figcaption").inner_text()
    # every control has a name, of its own or by its label
    unnamed = page.evaluate(
        "[...document.querySelectorAll('main a, main button, summary, header select, header input, header button')]"
        ".filter(e => e.checkVisibility() && !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"
    )
    assert unnamed == 0


def test_the_values_of_a_figure_are_a_table_that_opens(page: object) -> None:
    figure = page.locator("#figure-over-lengths")
    figure.locator("summary", has_text="Values of this figure").click()
    assert figure.locator("thead").inner_text().split("\t")[:4] == ["task", "variant", "at", "value"]
    assert figure.locator("tbody tr").count() == 18
    assert figure.locator("tbody tr").nth(6).inner_text().split("\t")[:4] == ["recall", HOSTILE, "64", "60"]


def test_the_keyboard_skips_to_the_content_and_shows_where_it_is(page: object) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content" and "#content" not in page.url
    # from there on the first control of the content
    page.locator("#groups a").first.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    style = "getComputedStyle(document.activeElement)"
    assert page.evaluate("document.activeElement.textContent") == "lra-text"
    assert page.evaluate(f"{style}.outlineStyle") == "solid" and page.evaluate(f"{style}.outlineWidth") == "3px"
    page.keyboard.press("Enter")
    page.wait_for_selector("#figure-frontier[data-ready]")


@pytest.mark.parametrize(("width", "columns"), [(390, 1), (820, 1), (1440, 2)])
def test_figures_use_the_width_and_the_page_never_scrolls_sideways(
    browser: object, file: Path, width: int, columns: int
) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900})
    troubles = watch(opened)
    for state in ("", "#q=lra-text%2Fquick", "#q=sweep"):
        open_at(opened, file, state)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        if state != "#q=sweep":
            left = opened.locator("figure").evaluate_all("all => all.map(one => one.getBoundingClientRect().x)")
            # the panels of the overview share one frame
            assert len({round(x) for x in left}) == (columns if state else 1)
        # no figure is wider than its frame
        over = "[...document.querySelectorAll('figure')].filter(f => f.scrollWidth > f.clientWidth).map(f => f.id)"
        assert opened.evaluate(over) == []
    opened.close()
    assert troubles == []


def test_a_page_of_one_board_needs_no_overview(browser: object, reports: list[Report], tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    path.write_text(html.render(reports[1:], title="Ours & <b>theirs</b>"), encoding="utf-8")
    opened = browser.new_page()
    open_at(opened, path)
    assert opened.locator("h1").text_content() == "Ours & <b>theirs</b>"
    assert opened.title().startswith("Ours & <b>theirs</b>: ")
    assert opened.locator("#home").is_hidden() and opened.locator("#board").is_visible()
    opened.close()

"""The page in a real browser: sorting, filtering, links, themes, keyboard, phone; and text that stays text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.bench.board.board import Note
from attnbench.bench.board.report import Report

pytest.importorskip("altair", reason="the extra dashboard is not installed")
pytest.importorskip("vl_convert", reason="the extra dashboard is not installed")

from pages import HOSTILE, drawn, open_at, watch

from attnbench.dashboards import html
from attnbench.dashboards.figures import figures


@pytest.fixture(scope="module")
def file(report: Report, lengths: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "index.html"
    path.write_text(html.render([report, lengths]), encoding="utf-8")
    return path


def names(opened: object) -> list[str]:
    return opened.locator("tbody th button").all_inner_texts()


def test_every_kind_of_data_has_its_figure(report: Report, lengths: Report) -> None:
    assert list(figures(report)) == ["frontier", "curves", "sparsity", "attention-distance", "alphas", "null-control"]
    assert list(figures(lengths)) == ["lengths"]
    # a line over a single length would show nothing
    assert list(figures(replace(lengths, lengths=lengths.lengths[::2]))) == []


@pytest.mark.slow
def test_results_by_setting_and_by_task_have_figures(by_setting: Report) -> None:
    assert list(figures(by_setting)) == ["suite", "by-length", "by-pairs", "right-key-length"]
    by_length = figures(by_setting)["by-length"].to_dict()
    across = [layer["encoding"]["x"] for layer in by_length["layer"] if layer["encoding"]["x"]["field"] == "at"]
    assert by_length["title"]["subtitle"] == "16 pairs; dashed: rates not chosen"
    # the tested lengths alone are named, on a logarithmic axis
    assert across[0]["axis"]["values"] == [64, 1024] and across[0]["scale"]["type"] == "log"
    assert by_length["datasets"]["trained"] == [{"length": 64}]
    # a pointer on a point is answered in words
    hints = [[each.get("title") for each in layer["encoding"].get("tooltip", ())] for layer in by_length["layer"]]
    assert [None, "length, tokens", "mean", "lowest seed", "highest seed", "learning rate"] in hints
    # doubling is shown on a logarithmic axis, other steps as they are
    pairs = figures(by_setting)["by-pairs"].to_dict()["layer"][1]["encoding"]
    assert "type" not in pairs["x"]["scale"] and pairs["y"]["scale"]["domain"] == [0, 100]


def test_the_policy_allows_two_scripts_and_no_code_from_text(report: Report, lengths: Report) -> None:
    for text in (html.render([report]), html.render_figures("Maps", [], figures(lengths))):
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        (scripts,) = (each for each in policy.split("; ") if each.startswith("script-src"))
        assert re.fullmatch(r"script-src( 'sha256-[\w+/=]+'){2}", scripts)


def test_figures_by_setting_are_drawn_without_a_warning(browser: object, by_setting: Report, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(html.render([by_setting]), encoding="utf-8")
    for width, scheme in ((1200, "dark"), (390, "light")):
        opened = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        troubles = watch(opened)
        open_at(opened, tmp_path / "index.html")
        assert opened.locator("figure").count() == 4
        # one legend of colours and shapes, in which each variant stands once
        legend = opened.locator("#figure-by-length .role-legend-label text")
        assert legend.all_text_contents() == ["entmax15", HOSTILE]
        if width < 400:
            assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
        opened.close()
        assert troubles == []


def test_a_variant_has_one_colour_and_one_shape_in_all_figures_of_a_board(page: object) -> None:
    marks = """id => {
      const all = (name) => [...document.querySelectorAll(`#${id} ${name}`)];
      const drawn = (path) => ['fill', 'd'].map((name) => path.getAttribute(name)).join(' ');
      const symbols = all('.role-legend-symbol path').map(drawn);
      return Object.fromEntries(all('.role-legend-label text').map((text, at) => [text.textContent, symbols[at]]));
    }"""
    frontier, curves = (page.evaluate(marks, f"figure-{name}") for name in ("frontier", "curves"))
    # in the order of the board; a legend names no variant that its figure does not show
    assert list(frontier) == ["entmax15", "softmax", HOSTILE] and list(curves) == ["softmax"]
    assert len(set(frontier.values())) == 3 and curves["softmax"] == frontier["softmax"]


def test_nothing_in_the_file_points_outside(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    head, _, rest = text.partition("<body>")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?https?:""", head + rest.partition("<script>")[0])
    assert "default-src 'none'" in head


def test_data_cannot_end_its_block(report: Report) -> None:
    text = html.render([report])
    block = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert block
    names, (source,) = json.loads(block[1])["records"]
    assert source[names.index("reason")] == "</script><script>alert(2)//"
    assert "<script>alert" not in text


def test_questions_share_their_columns_and_charts(report: Report, lengths: Report) -> None:
    text = html.render([report, replace(report, name="again"), lengths])
    shared = json.loads(re.search(r'id="shared">(.*?)</script>', text, re.DOTALL)[1])
    # of the board and of its part
    assert len(shared["columns"]) == 2 and len(shared["charts"]) == len(figures(report)) + len(figures(lengths))
    assert text.count('"Quality against cost; up and left is better"') == 1


def test_hostile_text_is_shown_as_text(page: object) -> None:
    assert HOSTILE in names(page)
    page.get_by_role("button", name=HOSTILE, exact=True).click()
    detail = page.locator("tr.detail").inner_text()
    assert "</script><script>alert(2)//" in detail and f"attnbench run --variants '{HOSTILE}'" in detail
    assert page.locator("main script").count() == 0
    # ten thousand characters of reason do not push the page apart
    assert page.evaluate("document.documentElement.scrollWidth") <= 1440


def test_sorting_goes_good_end_first_then_the_other_then_back(page: object) -> None:
    standing = names(page)
    assert standing == ["entmax15", "local[window=64]", "softmax", HOSTILE, "majority"]
    button = page.locator("th button", has_text="step time")
    button.click()
    assert names(page)[:3] == ["softmax", "local[window=64]", "entmax15"]
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.locator("th button", has_text="step time").click()
    # what has no value stays last either way
    assert names(page) == ["entmax15", "local[window=64]", "softmax", HOSTILE, "majority"]
    page.locator("th button", has_text="step time").click()
    assert names(page) == standing and "sort=" not in page.url


def test_filter_and_link(page: object, file: Path) -> None:
    page.fill("#filter", "max")
    assert names(page) == ["entmax15", "softmax"] and page.inner_text("#count") == "2 of 5 variants and baselines"
    page.locator("th button", has_text="variant").click()
    page.get_by_role("button", name="softmax", exact=True).click()
    link = "#" + page.url.partition("#")[2]
    open_at(page, file, link)
    assert names(page) == ["entmax15", "softmax"] and page.locator("tr.detail").count() == 1
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("variant")


def test_parts_stand_below_the_table_and_are_filtered_with_it(page: object) -> None:
    assert page.locator("#parts h3").all_inner_texts() == ["pictures <b>"]
    rows = page.locator("#parts tbody tr")
    assert rows.count() == 2 and "undecided against softmax" in rows.first.inner_text()
    # a sentence takes several lines, so that the table stays narrow
    assert rows.first.locator("td.words").evaluate("one => getComputedStyle(one).whiteSpace") == "normal"
    page.fill("#filter", "copy")
    assert page.locator("#parts tbody tr").all_inner_texts() == ["·\tcopy\t2.00\t\t"]
    page.select_option("#report", label="sweep")
    page.wait_for_selector("#figure-lengths[data-ready]")
    assert page.locator("#parts h3").count() == 0


def test_dark_by_button_by_link_and_by_system(page: object, browser: object, file: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.click("#theme")
    drawn(page)
    assert page.evaluate(ground) == "rgb(18, 22, 28)" and "theme=dark" in page.url
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    fill = page.locator("#figure-frontier svg .role-axis-title text").first.get_attribute("fill")
    assert fill == "#e8ebef"
    system = browser.new_page(color_scheme="dark")
    system.goto(file.as_uri())
    assert system.evaluate(ground) == "rgb(18, 22, 28)"
    system.close()


def test_everything_can_be_reached_by_keyboard(page: object) -> None:
    page.locator("th button", has_text="accuracy").focus()
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("accuracy")
    assert page.evaluate("document.activeElement.textContent").startswith("accuracy")
    page.locator("tbody th button").first.focus()
    page.keyboard.press("Space")
    assert page.locator("tr.detail").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_a_phone_scrolls_the_table_and_not_the_page(browser: object, file: Path) -> None:
    phone = browser.new_page(viewport={"width": 390, "height": 844})
    troubles = watch(phone)
    open_at(phone, file)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.evaluate("document.querySelector('#board .scroll').scrollWidth") > 390
    assert phone.inner_text("#count") == "5 of 5 variants and baselines; scroll the table for more columns"
    assert phone.locator(".scroll.wider").count() == 1
    phone.evaluate("document.querySelector('#board .scroll').scrollLeft = 10000")
    phone.wait_for_selector(".scroll.wider", state="detached")
    # sorting there leaves intervals below their values
    phone.locator("th button").first.click()
    assert phone.locator("#table.stacked").count() == 1
    assert troubles == []
    phone.close()


def test_what_is_not_the_data_that_it_stands_for_is_said_above_the_table(page: object) -> None:
    assert page.inner_text("#origin") == "⚠ data: surrogate: other data of the same kind"
    top = "document.querySelector('{}').getBoundingClientRect().top"
    assert page.evaluate(top.format("#origin")) < page.evaluate(top.format("#table"))


def test_six_notes_are_shown_and_the_rest_in_a_section_that_opens_and_stays_in_the_address(
    browser: object, report: Report, tmp_path: Path
) -> None:
    made = [Note(topic=f"n{at}", text=f"all of note {at} <b>", kind="method" if at == 8 else "fact") for at in range(9)]
    path = tmp_path / "notes.html"
    noted = replace(report, board=replace(report.board, notes=tuple(made), headline="Nobody can tell <i>."))
    path.write_text(html.render([noted]), encoding="utf-8")
    opened = browser.new_page()
    troubles = watch(opened)
    open_at(opened, path)
    assert (
        opened.inner_text("#title") == report.board.question
        and opened.inner_text("#headline") == "Nobody can tell <i>."
    )
    assert opened.locator("#chief-notes dd").all_inner_texts() == [f"all of note {at} <b>" for at in range(6)]
    assert opened.locator("#notes").is_hidden() and opened.inner_text("#all-notes summary") == "3 more notes"
    opened.focus("#all-notes summary")
    opened.keyboard.press("Enter")
    assert opened.locator("#notes dd").all_inner_texts() == [f"all of note {at} <b>" for at in range(6, 9)]
    opened.wait_for_url(lambda url: "notes=all" in url)
    opened.reload()
    opened.wait_for_selector("#notes dd")
    assert opened.locator("#notes").is_visible() and troubles == []
    opened.close()


def test_a_column_is_chosen_by_its_box_and_stays_in_the_address(
    browser: object, report: Report, tmp_path: Path
) -> None:
    columns = tuple(replace(column, description="described") for column in report.board.columns)
    path = tmp_path / "columns.html"
    path.write_text(html.render([replace(report, board=replace(report.board, columns=columns))]), encoding="utf-8")
    opened = browser.new_page()
    open_at(opened, path)
    heads = opened.locator("#table thead th")
    before = heads.all_inner_texts()
    opened.click("#columns summary")
    opened.locator("#columns dt", has_text="zeros").locator("input").uncheck()
    assert heads.all_inner_texts() == [text for text in before if "zeros" not in text] != before
    opened.reload()
    assert "zeros" not in " ".join(heads.all_inner_texts()) and "columns=" in opened.url
    opened.click("#columns summary")
    opened.locator("#columns dt", has_text="zeros").locator("input").check()
    assert sorted(heads.all_inner_texts()) == sorted(before)
    opened.close()


def test_rows_that_are_ticked_are_laid_on_one_another_in_the_figures(page: object) -> None:
    from playwright.sync_api import expect

    def drawn_in(name: str) -> set[str]:
        return set(page.locator(f"#figure-{name} .role-legend-label text").all_text_contents())

    def waits_for_labels(count: int) -> None:
        expect(page.locator("#figure-frontier .role-legend-label text")).to_have_count(count, timeout=600_000)

    assert drawn_in("frontier") == {"entmax15", "softmax", HOSTILE}
    for name in ("entmax15", HOSTILE):
        page.get_by_label(f"Show {name} in the figures").check()
    waits_for_labels(2)
    assert drawn_in("frontier") == {"entmax15", HOSTILE}
    # a figure without any of them is not there
    assert not page.locator("#figure-curves").is_visible()
    for name in (HOSTILE, "entmax15"):
        page.get_by_label(f"Show {name} in the figures").uncheck()
    waits_for_labels(3)
    assert page.locator("#figure-curves").is_visible() and "only=" not in page.url


def test_no_records_make_a_page_that_says_so(browser: object, tmp_path: Path) -> None:
    path = tmp_path / "empty.html"
    path.write_text(html.render([]), encoding="utf-8")
    empty = browser.new_page()
    troubles = watch(empty)
    empty.goto(path.as_uri())
    assert empty.inner_text("#headline") == "No Records yet." and troubles == []
    empty.close()


def test_a_page_of_figures_alone_draws_them_all(browser: object, lengths: Report, tmp_path: Path) -> None:
    path = tmp_path / "figures.html"
    text = html.render_figures("Maps <b>", ["p·z + H(p) & <i>more</i>"], figures(lengths))
    path.write_text(text, encoding="utf-8")
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    troubles = watch(opened)
    open_at(opened, path)
    assert opened.inner_text("h1") == "Maps <b>" and opened.inner_text("main p") == "p·z + H(p) & <i>more</i>"
    assert opened.locator("#figure-lengths svg.marks").count() == 1 and troubles == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()


FOUR_MAPS = {"layers": 2, "heads": 2, "rows": 1, "keys": 1, "tops": (0.5, 0.25, 1.0, 0.0), "shades": "/////w=="}
"""One pixel for each of two layers and two heads."""


def test_maps_are_chosen_by_layer_and_head(browser: object, report: Report, tmp_path: Path) -> None:
    path = tmp_path / "maps.html"
    with_maps = replace(report, maps=({"variant": HOSTILE, **FOUR_MAPS},), maps_left_out=3)
    path.write_text(html.render([with_maps]), encoding="utf-8")
    opened = browser.new_page(viewport={"width": 390, "height": 844})
    troubles = watch(opened)
    open_at(opened, path)
    assert opened.locator("#attention-maps canvas").count() == 4 and opened.inner_text("#attention-maps p") == HOSTILE
    assert "Left out to keep the page small: 3 variants." in opened.inner_text("#maps-words")
    opened.select_option("#layer", "1")
    opened.select_option("#head", "0")
    assert opened.locator("#attention-maps small").all_inner_texts() == ["layer 1, head 0: maximum 1.00"]
    pixel = "[...document.querySelector('#attention-maps canvas').getContext('2d').getImageData(0, 0, 1, 1).data]"
    assert opened.evaluate(pixel) == [7, 87, 168, 255]
    opened.click("#theme")
    assert opened.evaluate(pixel) == [122, 183, 255, 255]
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390 and troubles == []
    opened.close()


def reach(opened: object, name: str) -> None:
    """Presses the tabulator until the element of that id has the focus, as a person without a mouse would."""
    for _ in range(200):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.id") == name:
            return
    raise AssertionError(f"{name} cannot be reached by the keyboard")

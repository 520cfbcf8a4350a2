"""How soon a page of many Records can be used: python tests/perf/bench_page.py [PAGE.html], else of 10,000 made up.

A real Chromium opens the file five times, each time in a browser without a cache. `readable`: until the board's rows
stand in the document and the page's script has ended; `drawn`: until every figure of the first question is drawn too.
`chosen`: from choosing another question to its rows and figures.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from test_scale import records

SHAPE = (83, 1, 20, 1)
"""Tasks, presets, variants and versions: 9,960 Records."""

READY = "(all => all.length && all.every(f => f.dataset.ready))([...document.querySelectorAll('figure')])"
ROWS = "document.querySelectorAll('tbody tr').length > 0"
LOADED = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"


def made_page(folder: Path) -> Path:
    path = folder / "results" / "records" / "box.jsonl"
    path.parent.mkdir(parents=True)
    lines = [json.dumps(record.to_json()) + "\n" for record in records(*SHAPE)]
    path.write_text("".join(lines), encoding="utf-8")
    words = ["dashboard", "--results", str(folder / "results"), "--out", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "attnbench", *words], check=True)
    return folder / "site" / "index.html"


def opened(browser: Browser, page_file: Path) -> dict[str, float]:
    """Seconds by stage."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    start = time.perf_counter()
    page.goto(page_file.resolve().as_uri(), wait_until="domcontentloaded")
    page.wait_for_function(ROWS)
    found = {"readable": time.perf_counter() - start, "by the browser's clock": page.evaluate(LOADED) / 1000}
    page.wait_for_function(READY)
    found["drawn"] = time.perf_counter() - start
    start = time.perf_counter()
    page.select_option("#report", index=1)
    page.wait_for_function(READY)
    found["chosen"] = time.perf_counter() - start
    page.context.close()
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(sys.argv[1]) if sys.argv[1:] else made_page(Path(folder))
        print(f"{page_file.stat().st_size / 1e6:.1f} MB")
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        runs = [opened(browser, page_file) for _ in range(5)]
        browser.close()
    for stage in runs[0]:
        seconds = sorted(run[stage] for run in runs)
        print(f"{stage}: median {statistics.median(seconds):.2f} s, {seconds[0]:.2f} to {seconds[-1]:.2f} s")


if __name__ == "__main__":
    main()

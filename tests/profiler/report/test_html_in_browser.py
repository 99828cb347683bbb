"""The page as a real browser shows it: Debian's Chromium, without a screen and without the network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfpipe.profiler.report.html import render
from tfpipe.profiler.report.text_json import make_report
from tfpipe.profiler.types import Fix, Report, Step

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM.exists() and DRIVER.exists()), reason="needs Debian's chromium, chromium-driver"),
    pytest.mark.xdist_group("browser"),
]

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)
HOSTILE = "<script>alert(1)</script></svg>" + "long" * 40


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests, with an empty profile; its driver is given, so that selenium looks for none."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(str(DRIVER), log_output=os.devnull)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def report(profile_with) -> Report:
    timeline = tuple(Step(0.1 * i, 0.02 * (i % 4), 0.07) for i in range(1, 201))
    found = make_report(replace(profile_with(dataset={"name": HOSTILE}), timeline=timeline), price_per_hour=4)
    fixes = (
        Fix({"cache": "decoded", "service": f"grpc://{HOSTILE}"}, f"Why {HOSTILE}.", 3000.0, 0.25, 2900.0),
        Fix({}, "More.", 2000.0, 0.5, action="tfpipe shard INPUT OUTPUT --resize-short 256"),
        Fix({}, "Most.", 2000.0, 0.5, action="Run `tfpipe serve` on 2 machines."),
    )
    return replace(found, fixes=fixes)


def show(browser: Any, report: Report, folder: Path, width: int, scheme: str = "light") -> None:
    """Opens the page in a window of so many pixels, and empties the logs before."""
    path = folder / "report.html"
    path.write_text(render(report), encoding="utf-8")
    for log in ("browser", "performance"):
        browser.get_log(log)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(path.as_uri())


def requests_in(browser: Any) -> list[str]:
    """What the page asked for; the browser's own first page asks for things, too."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [one["params"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return [one["request"]["url"] for one in sent if one["documentURL"] == browser.current_url]


def shown(browser: Any, selector: str) -> int:
    """How many such elements are to be seen."""
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    return int(browser.execute_script(script, selector))


@pytest.mark.parametrize(("width", "size", "hidden"), [(1280, "wide", "narrow"), (390, "narrow", "wide")])
def test_the_page_is_whole(browser, report, tmp_path, width: int, size: str, hidden: str) -> None:
    show(browser, report, tmp_path, width)
    assert browser.title == f"{HOSTILE}: 75 % idle"
    assert browser.find_element("css selector", "#gauge").text.split("\n") == ["75 %", "idle"]
    stages = len(report.profile.stages) + 1  # and what no stage accounts for
    assert shown(browser, f'[id^="stages-{size}-bar-"]') == stages
    assert shown(browser, f"#stages-{hidden}") == shown(browser, f"#timeline-{hidden}") == 0
    assert shown(browser, ".fixes > li svg") == len(report.fixes)
    assert shown(browser, f"#timeline-{size}-idle") == 1
    assert browser.get_log("browser") == []
    assert requests_in(browser) == [(tmp_path / "report.html").as_uri()]


@pytest.mark.parametrize("width", [1280, 1000, 720, 390, 320])
def test_nothing_stands_out_at_the_side(browser, report, tmp_path, width: int) -> None:
    show(browser, report, tmp_path, width)
    browser.find_element("css selector", "summary").click()
    script = """
        const inside = e => e.closest('.scroll') === null
        const out = [...document.querySelectorAll('body *')].filter(inside)
            .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))
        return [document.documentElement.scrollWidth, out]
    """
    assert browser.execute_script(script) == [width, []]


def test_the_options_open(browser, report, tmp_path) -> None:
    show(browser, report, tmp_path, 1280)
    assert shown(browser, "details dd") == 0
    browser.find_element("css selector", "summary").click()
    assert shown(browser, "details dd") == len(report.profile.config) + len(report.profile.dataset)
    assert "map_fusion" in browser.find_element("css selector", "details").text


def test_light_and_dark(browser, report, tmp_path) -> None:
    script = """
        const style = (selector, name) => getComputedStyle(document.querySelector(selector))[name]
        return [style('body', 'backgroundColor'), style('#gauge text', 'fill'), style('h1', 'color')]
    """
    found = []
    for scheme in ("light", "dark"):
        show(browser, report, tmp_path, 1280, scheme)
        found.append(browser.execute_script(script))
    (light_page, light_text, light_ink), (dark_page, dark_text, dark_ink) = found
    assert (light_text, dark_text) == (light_ink, dark_ink)
    assert light_page != dark_page
    assert light_text != dark_text


def test_a_script_that_got_in_would_not_run(browser, report, tmp_path) -> None:
    """The policy is a second wall; this plants what escaping keeps out, and the browser says that it refused."""
    path = tmp_path / "planted.html"
    path.write_text(render(report).replace("<header>", "<script>document.title = 'run'</script><header>"))
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title != "run"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))

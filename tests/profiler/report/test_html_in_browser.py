"""The page as a real browser shows it: Debian's Chromium, without a screen and without the network."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser import needs_browser
from tests.profiler.profiles import make_fix, make_profile
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.report.html import render
from tfpipe.profiler.types import Report, Step

pytestmark = [needs_browser, pytest.mark.needs("selenium")]
HOSTILE = "<script>alert(1)</script></svg>" + "long" * 40


@pytest.fixture
def report() -> Report:
    timeline = tuple(Step(0.1 * i, 0.02 * (i % 4), 0.07) for i in range(1, 201))
    measured = make_report(replace(make_profile(dataset={"name": HOSTILE}), timeline=timeline), price_per_hour=4)
    changes = {"cache": "decoded", "service": f"grpc://{HOSTILE}"}
    fix = make_fix(changes, f"Why {HOSTILE}.", 3000.0, 0.25, measured_images_per_second=2900.0)
    ways = ("tfpipe reshard flowers flowers-new --resize-short 256", "Run `tfpipe serve` on 2 machines.")
    return replace(measured, fixes=(fix, *(make_fix({}, "More.", 2000.0, 0.5, instruction=way) for way in ways)))


def show(browser: Any, report: Report, folder: Path, width: int, scheme: str = "light") -> None:
    """Empties the logs, and opens the page in a window of this width in pixels."""
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
    """Returns the addresses that the page asked for; the browser's own first page asks for some, too."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    return [request["request"]["url"] for request in sent if request["documentURL"] == browser.current_url]


def count_shown(browser: Any, selector: str) -> int:
    """Returns how many elements that match a selector are visible."""
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    return int(browser.execute_script(script, selector))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole(browser: Any, report: Report, tmp_path: Path, width: int) -> None:
    show(browser, report, tmp_path, width)
    assert browser.title == f"{HOSTILE}: 75 % idle"
    assert browser.find_element("css selector", "#gauge").text.split("\n") == ["75 %", "idle"]
    stages = len(report.profile.stages) + 1  # and what no stage accounts for
    assert count_shown(browser, "td.track i") == stages
    assert count_shown(browser, ".fixes > li .rates") == len(report.fixes)
    assert count_shown(browser, "#timeline i") == len(report.profile.timeline)
    assert browser.get_log("browser") == []
    assert requests_in(browser) == [(tmp_path / "report.html").as_uri()]


@pytest.mark.parametrize(
    "width", [1280, 320, *(pytest.param(width, marks=pytest.mark.slow) for width in (1000, 720, 390))]
)
def test_nothing_stands_out_at_the_side(browser: Any, report: Report, tmp_path: Path, width: int) -> None:
    show(browser, report, tmp_path, width)
    browser.find_element("css selector", "summary").click()
    script = """
        const inside = e => e.closest('.scroll') === null
        const out = [...document.querySelectorAll('body *')].filter(inside)
            .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))
        return [document.documentElement.scrollWidth, out]
    """
    assert browser.execute_script(script) == [width, []]


def test_light_and_dark(browser: Any, report: Report, tmp_path: Path) -> None:
    script = """
        const style = (selector, name) => getComputedStyle(document.querySelector(selector))[name]
        return [style('body', 'backgroundColor'), style('#gauge b', 'color'), style('h1', 'color')]
    """
    styles = []
    for scheme in ("light", "dark"):
        show(browser, report, tmp_path, 1280, scheme)
        styles.append(browser.execute_script(script))
    (light_page, light_text, light_ink), (dark_page, dark_text, dark_ink) = styles
    assert (light_text, dark_text) == (light_ink, dark_ink)
    assert light_page != dark_page
    assert light_text != dark_text


def test_a_script_that_got_in_would_not_run(browser: Any, report: Report, tmp_path: Path) -> None:
    """The policy is a second guard: this plants a script past the escaping, and the browser says that it refused it."""
    path = tmp_path / "planted.html"
    path.write_text(render(report).replace("<header>", "<script>document.title = 'run'</script><header>"))
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title != "run"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))

"""The page: its content for every kind of report, and text from outside that must not become a part of it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.profiler.profiles import make_fix, make_profile, make_step
from tfpipe import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.report.html import render
from tfpipe.profiler.report.text_json import NO_STAGES, RANKING, format_headline
from tfpipe.profiler.types import OptionValue, Report, Spread, Step

VOID = {"meta", "br", "link"}


class Page(HTMLParser):
    """Elements and text of a page; fails on one that is not closed where it must be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["title"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def bars(self, color: str = "") -> list[float]:
        styles = [str(attrs.get("style")) for tag, attrs in self.elements if tag == "i"]
        found = [re.fullmatch(r"width: ([\d.e-]+)%; background: var\(--(\w+)\)", style) for style in styles]
        return [float(match[1]) for match in found if match and color in match[2]]

    def count(self, name: str) -> int:
        return sum(name in (attrs.get("class"), attrs.get("id")) for _, attrs in self.elements)


TIMELINE = tuple(Step(0.1 * i, 0.02, 0.07) for i in range(1, 101))


@pytest.fixture
def report() -> Report:
    return make_report(replace(make_profile(dataset={"name": "flowers"}), timeline=TIMELINE), price_per_hour=4)


def test_the_headline_and_key_figures_with_their_units(report: Report) -> None:
    html = render(report)
    assert f"<h1>{format_headline(report)}</h1>" in html
    assert "<title>flowers: 75 % idle</title>" in html
    for figure in (
        *("Required 4,000 images/s", "This pipeline 1,000 images/s", "CPU allows 1,053 images/s on 4 cores"),
        *("Storage allows 10,000 images/s", "First batch 0.5 s", "Memory 1.0 GB at most, of 16.0 GB"),
        *("Price of idle time 72.00 a day", "The first 100 of 100 measured steps.", f"tfpipe {__version__}."),
    ):
        assert figure in Page(html).text


def test_a_bar_and_a_row_for_each_stage_and_a_column_for_each_step(report: Report) -> None:
    page = Page(render(report))
    names = [stage.name for stage in report.profile.stages]
    lengths = page.bars()[: len(names) + 1]
    assert lengths == pytest.approx([100 * us / 2400 for us in (10, 200, 90, 2400, 700, 100, 300)], rel=1e-3)
    assert page.bars("idle") == [100]
    assert "decode 2,400 63 % 4 150" in page.text
    assert "hand-over 300 8 %" in page.text
    classes = [attrs["class"] for tag, attrs in page.elements if tag == "tr" and "class" in attrs]
    assert classes == ["is-bottleneck", "other"]
    # A step computes for 25 ms after 20 ms without a batch, and waits for 70 ms, which is the height.
    html = render(report)
    assert html.count('<i style="--compute: 35.71%; --whole: 64.29%; --wait: 100%; "></i>') == 100
    assert "step 1 height: 70 ms step 100" in Page(html).text
    assert 'aria-label="100 steps in a row; the accelerator stood idle before 100 of them."' in html


def test_fixes_show_what_they_give(report: Report) -> None:
    changes: dict[str, OptionValue] = {"cache": "decoded", "prefetch_batches": None}
    measured = {"measured_images_per_second": 2900.0, "measured_gain": Spread(2.9, 2.8, 3.0), "kept": True}
    fixes = (
        make_fix(changes, "Why `decode`.", 3000.0, 0.25, **measured),
        make_fix({}, "More.", 2000.0, 0.5, instruction="tfpipe reshard flowers flowers-new --resize-short 256"),
        make_fix({}, "Most.", 2000.0, 0.5, instruction="Run `tfpipe serve` on 2 machines."),
        make_fix({}, "Least.", 1500.0, 0.6, instruction="Filter.", action="move_stage", stage="keep"),
    )
    page = Page(render(replace(report, fixes=fixes)))
    assert 'cache = "decoded" # prefetch_batches: leave it out' in page.text
    assert "Why decode ." in page.text
    assert "2,900 images/s measured, x 2.90 (2.80 to 3.00): kept." in page.text
    assert RANKING in page.text
    assert page.count("rates") == 4
    assert "now 1,000 predicted 3,000 measured 2,900 required 4,000" in page.text
    assert page.bars("gain") == [75, 72.5, 50, 50, 37.5]
    assert [tag for tag, _ in page.elements].count("pre") == 2
    assert "Least. an option: keep 1,500 images/s, 60 % idle predicted." in page.text
    assert "Why decode . an option 2,900 images/s measured" in page.text


def test_options_of_the_textbook_pipeline_are_named_with_dots(report: Report, tmp_path: Path) -> None:
    changes: dict[str, OptionValue] = {"tf_data.cycle_length": 16, "tf_data.num_parallel_calls": None, "order": "auto"}
    text = Page(render(replace(report, fixes=(make_fix(changes, "More.", 3000.0, 0.25),)))).text
    given = 'tf_data.cycle_length = 16 order = "auto" # tf_data.num_parallel_calls: leave it out'
    assert given in text
    assert "tf_data.cycle_length – tf_data.block_length 16 tf_data.read_parallel_calls – " in text
    assert "augment_options.antialias false" in text
    assert "service.share 0.0 service." in text
    assert "service.timeout_s 300" in text
    file = tmp_path / "a.toml"
    file.write_text("batch_size = 4\n" + re.sub(" (?=order|#)", "\n", given))
    assert PipelineConfig.from_file(file) == PipelineConfig(batch_size=4, tf_data=TfDataOptions(cycle_length=16))


def test_the_page_reaches_for_nothing(report: Report) -> None:
    html = render(report)
    page = Page(html)
    policy = next(attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "link", "iframe", "object", "embed", "a", "form", "image", "foreignobject"}
    assert not re.search(r"https?:|@import|url\((?!#)|\son\w+=|javascript:", html)
    assert "prefers-color-scheme: dark" in html


HOSTILE = "<script>alert(1)</script></svg></style><!-- \"'`x`{{ 7*7 }}$x^2$&amp;"


def test_names_from_outside_stay_text() -> None:
    config = {"cache": "bytes", "cache_dir": HOSTILE}
    profile = make_profile(dataset={"name": HOSTILE, "own_stages": (HOSTILE,)}, config=config)
    stages = (*profile.stages[:-1], replace(profile.stages[-1], name=HOSTILE))
    fix = make_fix({"cache_dir": HOSTILE}, HOSTILE, 2000.0, 0.5, instruction="")
    act = make_fix({}, HOSTILE, 2000.0, 0.5, instruction=HOSTILE)
    report = make_report(replace(profile, stages=stages, timeline=TIMELINE))
    bottleneck = replace(report.bottleneck, stage=HOSTILE, reason=HOSTILE)
    html = render(replace(report, fixes=(fix, act), bottleneck=bottleneck))
    page = Page(html)
    assert "<script" not in html
    assert "49" not in re.findall(r"alert\(1\)[^<]*", html)[0]
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.text.count("alert(1)") >= 8
    assert html.count("</style>") == 1
    assert html.count("</svg>") == 0


def test_a_compute_bound_page_has_no_fixes() -> None:
    page = Page(render(make_report(replace(make_profile(step=make_step(1000, 1000)), timeline=TIMELINE))))
    assert "Compute-bound: the bottleneck is the accelerator" in page.text
    assert "What to change" not in page.text
    assert page.count("rates") == 0
    assert not [attrs for tag, attrs in page.elements if attrs.get("class") == "is-bottleneck"]


def test_what_is_missing_or_unknown_is_left_out_or_explained() -> None:
    page = Page(render(make_report(make_profile(stages=(), host={"cpu_fraction": 0.0}))))
    assert NO_STAGES in page.text
    assert page.count("track") == page.count("timeline") == 0
    assert "Step by step" not in page.text
    assert "CPU allows any rate" in page.text
    assert not re.search(r"\b(inf|nan)\b", page.text)
    unknown = {"records": None, "mean_size": None, "short_side": None, "formats": ()}
    profile = make_profile(host={"storage_limit_bytes_per_second": None}, dataset=unknown)
    text = Page(render(replace(make_report(profile), fixes=()))).text
    assert "No fix here would help." in text
    assert "Storage allows – not measured" in text
    assert "Price of idle time" not in text
    assert "records – record_bytes " in text
    assert "mean_size – short_side – decoded_size 256 x 256" in text


# As a real browser shows it: Debian's Chromium, without a screen and without the network

LONG = "<script>alert(1)</script></svg>" + "long" * 40


@pytest.fixture
def shown() -> Report:
    timeline = tuple(Step(0.1 * i, 0.02 * (i % 4), 0.07) for i in range(1, 201))
    measured = make_report(replace(make_profile(dataset={"name": LONG}), timeline=timeline), price_per_hour=4)
    changes = {"cache": "decoded", "service": f"grpc://{LONG}"}
    fix = make_fix(changes, f"Why {LONG}.", 3000.0, 0.25, measured_images_per_second=2900.0)
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


def count_shown(browser: Any, selector: str) -> int:
    """Returns how many elements that match a selector are visible."""
    script = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    return int(browser.execute_script(script, selector))


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_whole(browser: Any, shown: Report, tmp_path: Path, width: int) -> None:
    show(browser, shown, tmp_path, width)
    assert browser.title == f"{LONG}: 75 % idle"
    assert browser.find_element("css selector", "#gauge").text.split("\n") == ["75 %", "idle"]
    stages = len(shown.profile.stages) + 1  # and what no stage accounts for
    assert count_shown(browser, "td.track i") == stages
    assert count_shown(browser, ".fixes > li .rates") == len(shown.fixes)
    assert count_shown(browser, "#timeline i") == len(shown.profile.timeline)
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    page = (tmp_path / "report.html").as_uri()  # the browser's own first page asks for more
    assert [request["request"]["url"] for request in sent if request["documentURL"] == page] == [page]


@pytest.mark.parametrize(
    "width", [1280, 320, *(pytest.param(width, marks=pytest.mark.slow) for width in (1000, 720, 390))]
)
def test_nothing_stands_out_at_the_side(browser: Any, shown: Report, tmp_path: Path, width: int) -> None:
    show(browser, shown, tmp_path, width)
    browser.find_element("css selector", "summary").click()
    script = """
        const inside = e => e.closest('.scroll') === null
        const out = [...document.querySelectorAll('body *')].filter(inside)
            .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))
        return [document.documentElement.scrollWidth, out]
    """
    assert browser.execute_script(script) == [width, []]


def test_light_and_dark(browser: Any, shown: Report, tmp_path: Path) -> None:
    script = """
        const style = (selector, name) => getComputedStyle(document.querySelector(selector))[name]
        return [style('body', 'backgroundColor'), style('#gauge b', 'color'), style('h1', 'color')]
    """
    styles = []
    for scheme in ("light", "dark"):
        show(browser, shown, tmp_path, 1280, scheme)
        styles.append(browser.execute_script(script))
    (light_page, light_text, light_ink), (dark_page, dark_text, dark_ink) = styles
    assert (light_text, dark_text) == (light_ink, dark_ink)
    assert light_page != dark_page
    assert light_text != dark_text


def test_a_script_that_got_in_would_not_run(browser: Any, shown: Report, tmp_path: Path) -> None:
    """The policy is a second guard: this plants a script past the escaping, and the browser says that it refused it."""
    path = tmp_path / "planted.html"
    path.write_text(render(shown).replace("<header>", "<script>document.title = 'run'</script><header>"))
    browser.get_log("browser")
    browser.get(path.as_uri())
    assert browser.title != "run"
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))

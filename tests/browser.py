"""A real browser for the tests of pages: Debian's Chromium, without a screen and without the network."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Any]:
    """Starts one browser for all tests, with an empty profile; its driver is given, so that selenium looks for none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test-all]'")
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("needs Debian's chromium, chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER), log_output=os.devnull))
    try:
        yield driver
    finally:
        driver.quit()

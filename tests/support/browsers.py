"""Headless Chromium, from Debian's packages, for tests of pages."""

import shutil

import pytest

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
PHONE = 500  # pixels; a narrower screen is a phone


def start_browser(width: int, height: int = 800):
    """Start a browser of this size that keeps its logs; skip the test if none is installed."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("chromium and chromium-driver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS.split(), f"--window-size={width},{height}"):
        options.add_argument(flag)
    if width < PHONE:
        size = {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 2.0}}
        options.add_experimental_option("mobileEmulation", size)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def wait_for_pictures(browser) -> None:
    """Wait until the pictures of a page are unpacked and drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    is_done = "return [...document.images].every(image => image.naturalWidth > 0)"
    WebDriverWait(browser, 60).until(lambda opened: opened.execute_script(is_done))

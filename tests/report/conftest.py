"""A real browser, in which pages run without errors and without a network."""

import os
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser():
    if EXECUTABLE is None and os.environ.get("HEADWISE_BROWSER") != "required":
        pytest.skip("there is no Chromium or Chrome")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """`opened(path, **options)` opens a page; in the end it had no errors and no requests."""
    contexts, problems = [], []

    def check_message(message):
        if message.type == "error":
            problems.append(message.text)

    def check_request(request):
        if not request.url.startswith(("file:", "data:", "blob:")):
            problems.append(request.url)

    def open_page(path, **options):
        contexts.append(browser.new_context(**options))
        tab = contexts[-1].new_page()
        tab.on("pageerror", lambda error: problems.append(f"error: {error}"))
        tab.on("console", check_message)
        tab.on("request", check_request)
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert not problems

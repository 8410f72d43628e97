"""The viewer in headless Chromium: keys, filters, tree, hostile text, and nothing asked of anywhere else."""

import importlib.util
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepward.flows.viewer.server import ViewerServer, discover


def _data() -> ModuleType:
    """viewer_data.py beside this file; tests are no package, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("viewer_data", Path(__file__).with_name("viewer_data.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["viewer_data"] = module
    spec.loader.exec_module(module)
    return module


data = _data()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerServer]:
    place = tmp_path_factory.mktemp("viewer")
    data.make_dataset(place / "dataset")
    data.make_results(place / "evaluation")
    with ViewerServer(*discover(place)) as served:
        thread = threading.Thread(target=lambda: served.serve_forever(poll_interval=0.02), daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def eventually(tab: Any, script: str, timeout_s: float = 90.0) -> None:
    """Waits for a script to say true; the page's own policy forbids Playwright's way, which evaluates text."""
    end = time.monotonic() + timeout_s
    while not tab.evaluate(script):
        assert time.monotonic() < end, f"never true: {script}"
        time.sleep(0.03)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    chromium = (
        os.environ.get("STEPWARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    with sync_api.sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except sync_api.Error as fault:
            pytest.skip(f"no Chromium: set STEPWARD_CHROMIUM ({str(fault).splitlines()[0]})")
        yield launched
        launched.close()


@pytest.fixture
def tab(browser: Any, server: ViewerServer) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(180_000)  # a busy machine may take a minute to start a page
    opened = context.new_page()
    faults: list[str] = []
    asked: list[str] = []
    opened.on("pageerror", lambda fault: faults.append(str(fault)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(server.url)
    opened.wait_for_selector("body[data-ready]")
    yield opened
    assert faults == []
    assert all(url.startswith(server.url) for url in asked)
    context.close()


@pytest.mark.browser
def test_keys_lead_from_the_list_to_a_step_and_its_rollouts(tab: Any) -> None:
    assert tab.locator("#rows li").count() == 50
    assert tab.locator("#detail h1").inner_text() == "p0-0"
    tab.keyboard.press("j")
    eventually(tab, "document.querySelector('#detail h1').textContent === 'p0-1'")
    tab.keyboard.press("n")
    tab.keyboard.press("n")
    assert tab.evaluate("document.activeElement.dataset.step") == "1"
    tab.keyboard.press("r")
    tab.wait_for_selector(".rollouts details")
    assert tab.locator(".rollouts summary").count() == 2
    tab.locator(".rollouts summary").first.click()
    assert "continuation 0 of prefix 2" in tab.locator(".rollouts pre").first.inner_text()
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "rows"
    tab.keyboard.press("k")
    eventually(tab, "document.querySelector('#detail h1').textContent === 'p0-0'")


@pytest.mark.browser
def test_what_a_model_wrote_stays_text(tab: Any) -> None:
    tab.keyboard.press("r")
    tab.wait_for_selector(".rollouts details")
    tab.wait_for_timeout(200)
    assert tab.title() == "Stepward"  # the hostile text would have changed it
    assert tab.locator("#detail img, #rows img, #detail script").count() == 0
    assert data.EVIL in tab.locator(".problem").inner_text()


@pytest.mark.browser
def test_a_claim_is_marked_where_it_stands_even_after_an_emoji(tab: Any) -> None:
    tab.fill("#search", "p0-2")
    eventually(tab, "document.querySelector('#count').textContent.startsWith('1 row')")
    tab.locator("#rows li").first.click()
    eventually(tab, "document.querySelector('#detail h1').textContent === 'p0-2'")
    assert tab.locator("mark.refuted").inner_text() == "2 + 2 = 5"


@pytest.mark.browser
def test_filters_and_sorts_narrow_the_list(tab: Any) -> None:
    tab.select_option("select[name=conflict]", "returns")
    eventually(tab, "document.querySelector('#count').textContent.startsWith('40 rows of 160')")
    tab.select_option("select[name=sort]", "conflict")
    tab.wait_for_timeout(300)
    assert tab.locator("#rows li").first.locator(".badge", has_text="disagreement").count() == 1
    tab.select_option("select[name=conflict]", "")
    tab.select_option("select[name=sort]", "")
    eventually(tab, "document.querySelector('#count').textContent === '160 rows'")
    tab.keyboard.press("Escape")
    tab.keyboard.press("]")
    eventually(tab, "document.querySelector('#range').textContent.startsWith('51')")
    tab.keyboard.press("k")  # before the first row of a page stands the last of the one before
    eventually(tab, "document.querySelector('#range').textContent.startsWith('1–')")


@pytest.mark.browser
def test_the_tree_joins_what_begins_alike_and_leads_to_a_step(tab: Any) -> None:
    tab.keyboard.press("t")
    tab.wait_for_selector("#tree svg")
    # root, shared "Add", two continuations with two ends each, a guess with its end, a long one with its end
    assert tab.locator("#tree .node").count() == 1 + 1 + 4 + 2 + 2
    tab.locator("#tree .node").nth(3).focus()
    tab.keyboard.press("Enter")
    eventually(tab, "document.activeElement.dataset.step === '2'")
    tab.locator("#same-problem").click()
    eventually(tab, "document.querySelector('#count').textContent.startsWith('4 rows')")
    tab.locator("#only-problem button").click()
    eventually(tab, "document.querySelector('#count').textContent === '160 rows'")


@pytest.mark.browser
def test_evaluated_items_stand_beside_the_human_label(tab: Any) -> None:
    tab.select_option("#folder", "evaluation")
    eventually(tab, "document.querySelector('#detail h1')?.textContent === 'item-0'")
    tab.select_option("select[name=kind]", "missed")
    eventually(tab, "document.querySelector('#count').textContent.startsWith('5 rows of 20')")
    tab.locator("#rows li").first.click()
    tab.wait_for_selector("text=human: first error")
    assert tab.locator(".step.first-error").count() == 1
    tab.locator("#reports a").click()
    tab.wait_for_selector("text=First wrong step")


@pytest.mark.browser
def test_an_address_leads_back_to_the_same_solution(tab: Any, server: ViewerServer) -> None:
    tab.keyboard.press("j")
    eventually(tab, "document.querySelector('#detail h1').textContent === 'p0-1'")
    address = tab.url
    assert address.startswith(server.url + "#")
    again = tab.context.new_page()
    again.goto(address)
    eventually(again, "document.querySelector('#detail h1')?.textContent === 'p0-1'")
    again.close()


@pytest.mark.browser
def test_a_narrow_window_does_not_scroll_sideways(tab: Any) -> None:
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.wait_for_timeout(100)
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")

# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real browser: what it shows is what the job says, and its buttons give orders."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "unit"))

from serving import KEYS, ask, hello, open_line, until

from gangline.coordinator.server import CoordinatorServer, Driver
from gangline.coordinator.settings import Settings
from gangline.eventlog import EventWriter, log_path
from gangline.protocol.messages import (
    Held,
    Measured,
    Ping,
    Ready,
    SaveAsked,
    decode_from_coordinator,
    encode,
)
from gangline.spec.event import Decision, Logged, StepDone, Utilisation, ViewAdopted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Job:
    """A coordinator in this process, and workers that only say that they train."""

    def __init__(self, folder: Path) -> None:
        driver = Driver(Settings(run="test", expected_workers=2), folder)
        self.server = CoordinatorServer(driver, keys=KEYS, run_dir=folder)
        self.folder = folder
        self.heard: list[Any] = []
        self.stack = contextlib.ExitStack()
        self.is_over = False

    def __enter__(self) -> Job:
        self.server.start()
        self.lines = [self.stack.enter_context(open_line(self.server)) for _ in range(2)]
        for worker, line in enumerate(self.lines):
            line.send(hello(worker, host=EVIL if worker else "desk"))
        for line in self.lines:
            ready = Ready(
                global_batch=40, minimum=1, allocation="equal", shares=None, max_samples=None,
                seed=1, keeps_checkpoints=True,
            )  # fmt: skip
            line.send(encode(ready))
        self.threads = [threading.Thread(target=self._listen, args=(one,)) for one in self.lines]
        for thread in self.threads:
            thread.start()
        until(lambda: self.status()["view"], "the first view")
        for line in self.lines:
            line.send(encode(Measured(step=7, view=0, samples=20, compute_s=0.1)))
        self.write_logs(steps=0)
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_over = True
        for thread in self.threads:
            thread.join()
        self.stack.close()
        self.server.stop()

    def _listen(self, line: Any) -> None:
        """Says now and then that it is there, and hears what it is told."""
        while not self.is_over:
            line.send(encode(Ping(sent_s=0.0)))
            with contextlib.suppress(TimeoutError):
                self.heard.append(decode_from_coordinator(line.recv(timeout=0.2)))

    def write_logs(self, *, steps: int) -> None:
        now = time.time()
        for worker, compute_s in enumerate((0.1, 0.4)):
            source = f"worker {worker}"
            with EventWriter(log_path(self.folder, source), run="test", source=source) as log:
                if worker == 0:
                    log.write(ViewAdopted(
                        t=now - 10, view=0, step=0, members=[0, 1], shares=[20, 20], reason="begin",
                    ))  # fmt: skip
                for step in range(steps):
                    t = now - 10 + step / 2
                    log.write(StepDone(
                        t=t, worker=worker, step=step, epoch=3, view=0, samples=20, start=0,
                        stop=40, compute_s=compute_s, data_s=0.0, exchange_s=0.5 - compute_s,
                        update_s=0.0,
                    ))  # fmt: skip
                    log.write(Logged(
                        t=t, worker=worker, step=step, epoch=3, samples=20, values={"loss": 0.5},
                    ))  # fmt: skip
                log.write(Utilisation(
                    t=now, worker=worker, cpu=1.5, node_cpu=0.5, memory_bytes=5_000_000,
                    node_memory=0.5, threads=3, sent_bytes=0, received_bytes=0,
                ))  # fmt: skip
                reason = f"worker {worker} is slow: {EVIL}"
                numbers = {"worker": float(worker)}
                log.write(Decision(t=now - 5, what="note", reason=reason, numbers=numbers))

    def status(self) -> Any:
        return ask(self.server, "/api/status", KEYS.observer).json()

    def link(self, token: str) -> str:
        code = ask(self.server, "/api/dashboard/code", token, content=b"{}").json()["code"]
        return f"{self.server.url.replace('ws', 'http', 1)}/dashboard#{code}"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    with Job(tmp_path_factory.mktemp("run")) as made:
        yield made


def show(page: Any, job: Job, token: str) -> Any:
    page.goto(job.link(token))
    page.wait_for_selector("#workers tbody tr")
    page.wait_for_selector("#speed canvas")
    return page


def wait_for_figure(page: Any, name: str, value: str) -> None:
    """Waits until the page shows this value; the first snapshot may be older than the logs."""
    page.locator(f"#figures div:has(span:text-is('{name}')):has(b:text-is('{value}'))").wait_for()


def wait_for_values(page: Any, chart: str, are_right: Callable[[Any], bool]) -> None:
    """Waits until the lines of a chart have such values."""
    series = f"document.getElementById('{chart}').chart.options.series.map(one => one.values)"
    for _ in range(100):
        shown = page.evaluate(series)
        if are_right(shown):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the chart {chart} shows {shown}")


def test_it_shows_the_numbers_of_the_logs(page: Any, job: Job) -> None:
    job.write_logs(steps=20)  # only now, as they shall be the last ones
    show(page, job, KEYS.observer)
    assert "#" not in page.url, "the code stays in no history"
    assert page.evaluate("document.cookie") == ""
    wait_for_figure(page, "epoch", "3")
    wait_for_figure(page, "step", "7")
    wait_for_figure(page, "loss", "0.5")
    wait_for_figure(page, "workers take part", "2 of 2")
    wait_for_figure(page, "samples/s", "80")  # 2 × 20 samples in 0.5 s
    wait_for_figure(page, "of the sum of the parts", "32 %")  # 20/0.1 + 20/0.4 = 250
    # In the middle, as the first point may be of less than a second.
    wait_for_values(
        page, "speed", lambda shown: [one[-3] for one in shown] == pytest.approx([80, 250])
    )
    wait_for_values(page, "shares", lambda shown: [one[-1] for one in shown] == [20, 20])
    assert page.locator("#orders").is_hidden(), "an observer gives no orders"
    assert page.locator("#steps canvas").bounding_box()["height"] > 40


def test_what_users_have_written_runs_no_script(page: Any, job: Job) -> None:
    show(page, job, KEYS.observer)
    row = page.locator("#workers tbody tr").nth(1)
    assert row.locator("td").nth(1).inner_text() == EVIL
    row.click()
    panel = page.locator("#worker")
    assert f"worker 1 is slow: {EVIL}" in panel.inner_text()
    assert "5 MB" in panel.inner_text()
    assert EVIL in page.locator("#news").inner_text()
    assert page.locator("main img, section img").count() == 0
    assert page.title() == "test · gangline"


def test_a_press_that_outlasts_a_snapshot_is_a_click(page: Any, job: Job) -> None:
    show(page, job, KEYS.operator)
    page.get_by_role("button", name="worker 0").hover()
    page.mouse.down()
    page.evaluate(
        "new Promise(done => new MutationObserver(done).observe(document.getElementById('figures'),"
        " {childList: true}))"
    )  # the next snapshot is drawn
    page.mouse.up()
    page.wait_for_selector("#worker h3")
    page.locator("#worker").get_by_role("button", name="leave").hover()
    page.mouse.down()
    page.wait_for_timeout(1200)
    page.mouse.up()
    page.locator("dialog button[value=no]").click()


def test_an_operator_pauses_and_has_a_checkpoint_written(page: Any, job: Job) -> None:
    show(page, job, KEYS.operator)
    page.get_by_role("button", name="pause").click()
    page.get_by_role("button", name="resume").wait_for()
    assert job.status()["is_paused"]
    until(lambda: Held(number=1) in job.heard, "the workers to be told")
    page.get_by_role("button", name="resume").click()
    page.get_by_role("button", name="pause").wait_for()
    assert not job.status()["is_paused"]
    page.get_by_role("button", name="checkpoint").click()
    until(lambda: SaveAsked() in job.heard, "the workers to be told")


@pytest.mark.slow
def test_a_dire_order_is_asked_about_and_can_be_taken_back(page: Any, job: Job) -> None:
    show(page, job, KEYS.operator)
    page.get_by_role("button", name="end", exact=True).click()
    page.locator("dialog button[value=no]").click()
    page.wait_for_selector("dialog", state="hidden")
    assert "end" not in page.locator("#told").inner_text()
    page.locator("#workers tbody tr").first.click()
    assert page.locator("#worker").get_by_role("button", name="exclude").is_visible()
    assert page.locator("#worker").get_by_role("button", name="kill").count() == 0


@pytest.mark.slow
def test_it_is_reached_by_the_keyboard_and_fits_a_phone(
    new_page: Callable[..., Any], job: Job
) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    show(page, job, KEYS.observer)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    row = page.locator("#workers tbody tr").first
    for cell in row.locator("td:visible").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390, "nothing is out of sight"
    page.get_by_role("button", name="worker 0").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#worker h3")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="light / dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_run_that_was_ended_is_over_and_takes_no_orders(browser: Any, tmp_path: Path) -> None:
    with contextlib.closing(browser.new_context()) as context:  # whose console may tell of the loss
        page = context.new_page()
        with Job(tmp_path) as job:
            job.write_logs(steps=20)
            show(page, job, KEYS.operator)
            page.locator("#mode").select_option("full")
            page.get_by_role("button", name="change mode").click()
            assert page.locator("#told").inner_text() == "the mode is full already"
            page.get_by_role("button", name="end", exact=True).click()
            page.locator("dialog button[value=yes]").click()
            page.locator("#news .what:text-is('end')").wait_for()
        page.locator("#line:text-is('the run is over')").wait_for()
        assert "gangline report" in page.locator("#told").inner_text()
        assert page.get_by_role("button", name="pause").is_disabled()
        page.get_by_role("button", name="worker 0").click()
        assert page.get_by_role("button", name="exclude").is_disabled()


def test_a_stranger_is_asked_for_a_code(new_page: Callable[..., Any], job: Job) -> None:
    page = new_page()
    page.goto(job.link(KEYS.observer).partition("#")[0])
    page.wait_for_selector("#login")
    page.fill("#code", job.link(KEYS.observer).partition("#")[2])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("#workers tbody tr")
    page.get_by_role("button", name="log out").click()
    page.wait_for_selector("#login")

# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: what it shows is what the log says, and it can be handled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import made_runs
import pytest

import gangline
from gangline.observe.page import Price, compare_folders, make_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GANTT = "[data-section='What everybody did']"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_runs.plain_run(tmp_path_factory.mktemp("runs") / "plain")


def show(page: Any, text: str, folder: Path) -> Any:
    """Opens a report from disk, and waits until it is drawn."""
    file = folder / "report.html"
    file.write_text(text, encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


@pytest.fixture
def shown(page: Any, run_dir: Path, tmp_path: Path) -> Any:
    return show(page, make_page(run_dir, price=Price(per_hour=3600)), tmp_path)


def chart(page: Any, title: str, expression: str) -> Any:
    """What a chart says of itself; `chart` is the chart in the expression."""
    return page.evaluate(
        "([title, expression]) => { const chart = "
        "document.querySelector(`[data-section='${title}']`).chart; "
        "return Function('chart', `return ${expression}`)(chart); }",
        [title, expression],
    )


def test_a_step_in_the_gantt_chart_has_the_numbers_of_the_log(shown: Any) -> None:
    at_s = 1 + 10.5 * made_runs.STEP_S
    for worker, compute_s in enumerate(made_runs.COMPUTE_S):
        found = chart(shown, "What everybody did", f"chart.data.look({worker}, {at_s}, 1)")
        assert found["step"] == 10
        assert found["samples"] == made_runs.SHARES[worker]
        wait_s = max(made_runs.COMPUTE_S) - compute_s
        expected = {
            "data": made_runs.DATA_S,
            "compute": compute_s,
            "wait": wait_s,
            "exchange": made_runs.EXCHANGE_S,
            "update": made_runs.UPDATE_S,
        }
        assert found["spent"] == pytest.approx(expected, abs=1e-6)


def test_sums_in_the_gantt_chart_are_those_of_the_log(shown: Any) -> None:
    script = """(() => { const {cells, bins, kinds, width} = chart.model; const sums = {};
        kinds.forEach((kind, lane) => { sums[kind] = 0; for (let bin = 0; bin < bins; bin += 1)
        sums[kind] += cells[lane * bins + bin] / 255 * width; }); return sums; })()"""
    sums = chart(shown, "What everybody did", " ".join(script.split()))
    steps = made_runs.NUM_STEPS
    assert sums["compute"] == pytest.approx(made_runs.COMPUTE_S[0] * steps, rel=0.02)
    assert sums["wait"] == pytest.approx((0.4 - made_runs.COMPUTE_S[0]) * steps, rel=0.02)


def test_lines_have_the_numbers_of_the_log(shown: Any) -> None:
    x, measured, parts = chart(
        shown, "Throughput, and the sum of the parts", "chart.plot.data.map((one) => [...one])"
    )
    used = sum(measured) * (x[1] - x[0])
    assert used == pytest.approx(sum(made_runs.SHARES) * made_runs.NUM_STEPS, rel=1e-3)
    pairs = zip(made_runs.SHARES, made_runs.COMPUTE_S, strict=True)
    assert parts[len(parts) // 2] == pytest.approx(sum(n / s for n, s in pairs), rel=1e-3)

    shares = chart(shown, "Shares", "chart.options.series.map((one) => one.values[20])")
    total = sum(made_runs.SHARES)
    assert shares == pytest.approx([one / total for one in made_runs.SHARES], rel=1e-3)

    took = chart(shown, "Step time, predicted and measured", "[...chart.plot.data[1]]")
    assert took == pytest.approx([made_runs.STEP_S] * made_runs.NUM_STEPS, rel=1e-3)
    planned = chart(shown, "Step time, predicted and measured", "[...chart.plot.data[2]]")
    assert planned[-1] == pytest.approx(0.42)


def test_what_was_logged_is_a_mean_by_samples(shown: Any) -> None:
    values = shown.evaluate("[...gangline.shown.runs[0].logged[0].values]")
    assert values == pytest.approx([100 / (step + 1) for step in range(made_runs.NUM_STEPS)])
    samples = shown.evaluate("[...gangline.shown.runs[0].logged[0].samples]")
    assert samples[-1] == sum(made_runs.SHARES) * made_runs.NUM_STEPS
    shown.get_by_role("button", name="over samples").click()
    assert shown.get_by_role("button", name="over time").is_visible()


def test_utilisation_has_a_line_for_each_worker(shown: Any) -> None:
    told = shown.evaluate(
        "gangline.shown.runs[0].utilisation.map((one) => "
        "[one.metric, one.series.map((line) => line.values[2])])"
    )
    by_metric = dict(told)
    assert by_metric["cpu"] == [1, 2, 3]
    assert by_metric["memory_bytes"] == [1e6, 2e6, 3e6]
    assert by_metric["sent_bytes"] == pytest.approx([500 / (2 * made_runs.STEP_S)] * 3, rel=1e-3)
    assert "gpu" not in by_metric


def test_the_bill_says_who_was_waited_for_and_what_it_cost(shown: Any) -> None:
    bill = shown.locator("[data-section='The bill']").inner_text()
    waited_s = (0.3 + 0.2) * made_runs.NUM_STEPS
    part = waited_s / (2 * made_runs.STEP_S * made_runs.NUM_STEPS)
    assert f"made-up node 2 made the others wait {part * 100:.0f} % of the time" in bill
    assert f"(€ {waited_s:,.2f})" in bill  # at one euro per second


def test_the_gantt_chart_zooms_by_wheel_mouse_and_keys(shown: Any) -> None:
    canvas = shown.locator(f"{GANTT} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    view = "[chart.view.begin, chart.view.end]"
    whole = chart(shown, "What everybody did", view)
    middle = box["x"] + box["width"] / 2
    shown.mouse.move(middle, box["y"] + 60)
    shown.mouse.down()
    shown.mouse.move(middle + 100, box["y"] + 60)
    shown.mouse.up()
    chosen = chart(shown, "What everybody did", view)
    assert whole[0] < chosen[0] < chosen[1] < whole[1]
    shown.mouse.wheel(0, -400)
    wheeled = chart(shown, "What everybody did", view)
    assert chosen[0] < wheeled[0] < wheeled[1] < chosen[1]
    canvas.press("-")
    assert chart(shown, "What everybody did", "chart.view.end - chart.view.begin") == pytest.approx(
        2 * (wheeled[1] - wheeled[0])
    )
    canvas.press("ArrowRight")
    canvas.press("0")
    assert chart(shown, "What everybody did", view) == whole
    shown.get_by_role("button", name="zoom in").click()
    assert chart(shown, "What everybody did", "chart.view.end - chart.view.begin") == pytest.approx(
        whole[1] / 2
    )
    shown.wait_for_timeout(300)  # the charts below follow
    assert chart(shown, "Shares", "chart.plot.scales.x.min") > 0


def test_hovering_tells_of_steps_units_and_decisions(shown: Any) -> None:
    canvas = shown.locator(f"{GANTT} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tip = shown.locator(".tip")
    begin_s = 1 + 10 * made_runs.STEP_S
    chart(shown, "What everybody did", f"chart.zoom({begin_s}, {begin_s + made_runs.STEP_S})")

    def point(at_s: float, y: float) -> None:
        x = chart(shown, "What everybody did", f"chart.xOf({at_s})")
        shown.mouse.move(box["x"] + x, box["y"] + y)

    point(begin_s + 0.2, 40)
    assert "step 10: 40 samples" in tip.inner_text()
    assert "compute 100 ms" in tip.inner_text()
    point(begin_s + made_runs.DATA_S + 0.415, 40)
    assert "unit 1: ready after 90 ms, exchanged in 10 ms" in tip.inner_text()
    decided_s = 1 + 100 * made_runs.STEP_S
    chart(shown, "What everybody did", f"chart.zoom({decided_s - 1}, {decided_s + 1})")
    point(decided_s, 26)
    assert "it is slow" in tip.inner_text()
    assert "gain 0.25" in tip.inner_text()


def test_text_of_users_runs_no_script(page: Any, tmp_path: Path) -> None:
    name = "</script><script>hacked=1</script><img src=x onerror=hacked=1>\u2028&lt;b>"
    run_dir = made_runs.plain_run(tmp_path / "run", name=name, reason=f"because {name}")
    show(page, make_page(run_dir), tmp_path)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.title().startswith("</script>")
    assert name.split("\u2028")[0] in page.locator("h1").inner_text()
    assert f"because {name}".split("\u2028")[0] in page.locator("body").inner_text()
    assert page.locator("img").count() == 0


def test_the_page_needs_no_network(
    new_page: Callable[..., Any], run_dir: Path, tmp_path: Path
) -> None:
    page = new_page(offline=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, make_page(run_dir), tmp_path)
    assert [url.partition(":")[0] for url in asked] == ["file"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_light_or_dark(
    new_page: Callable[..., Any], run_dir: Path, tmp_path: Path, scheme: str
) -> None:
    page = new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme, has_touch=True)
    show(page, make_page(run_dir), tmp_path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    paper = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(paper)
    page.get_by_role("button", name="light / dark").click()
    assert page.evaluate(paper) != before


def test_everything_can_be_reached_by_keys(shown: Any) -> None:
    reached = set()
    for _ in range(60):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("document.activeElement.getAttribute('aria-label') || ''"))
    assert any(label.startswith("what all workers did") for label in reached)
    assert sum(label.startswith("chart:") for label in reached) >= 5


def test_a_torn_log_is_shown_with_a_warning(page: Any, tmp_path: Path) -> None:
    run_dir = made_runs.plain_run(tmp_path / "run")
    log = run_dir / "events" / "worker-1.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    show(page, make_page(run_dir), tmp_path)
    assert "ends in the middle of a line" in page.locator("body").inner_text()


def test_many_workers_are_three_rows(page: Any, tmp_path: Path) -> None:
    run_dir = made_runs.summed_run(tmp_path / "run")
    show(page, make_page(run_dir), tmp_path)
    assert chart(page, "What everybody did", "chart.model.rows.map((row) => row.label)") == [
        "the fastest",
        "in the middle",
        "the slowest",
    ]
    figures = page.locator("[data-section='Figures']").inner_text()
    assert "100,000" in figures
    assert "worker 4711 made the others wait" in page.locator("body").inner_text()


def test_runs_stand_side_by_side_on_one_scale(page: Any, run_dir: Path, tmp_path: Path) -> None:
    other = made_runs.plain_run(tmp_path / "other", name="other")
    _, text = compare_folders([run_dir, other], with_page=True)
    show(page, text, tmp_path)
    assert page.locator(f"{GANTT} canvas").count() == 2
    table = page.locator("table").first.inner_text()
    assert "samples/s" in table
    assert "1 times [1, 1]" in table
    title = "Throughput, and the sum of the parts"
    tops = page.evaluate(
        "(title) => [...document.querySelectorAll(`[data-section='${title}']`)]"
        ".map((one) => one.chart.plot.scales.y.max)",
        title,
    )
    assert tops[0] == tops[1] > 0


def test_a_notebook_shows_it_in_a_frame(page: Any, run_dir: Path, tmp_path: Path) -> None:
    cell = tmp_path / "cell.html"
    cell.write_text(f"<!doctype html>{gangline.report(run_dir)._repr_html_()}", encoding="utf-8")
    page.goto(cell.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for()
    assert "made the others wait" in frame.locator("body").inner_text()

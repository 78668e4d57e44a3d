# SPDX-License-Identifier: Apache-2.0
"""The report's page for long runs: time to make it, size, time to load, and frames while zooming.

    python benchmarks/report_page.py [--spans 1000 100000 10000000] [--json]

The logs are made up: 64 workers (4 for a thousand spans), a decision every 2,000 steps. A step is five
spans of each worker. The page is drawn by Debian's chromium-headless-shell (`make browser`), without a
GPU: a frame is counted when the browser has drawn it, zooming in from the whole run to a single step
and out again. Exits with 1 if the largest file has more than 20 MB, or fewer than 20 frames/s.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gangline.observe.page import make_page

CHROMIUM = "/usr/bin/chromium-headless-shell"
SPANS_PER_STEP = 5
MOST_BYTES = 20e6
LEAST_FRAMES = 20.0
STEP_S = 0.5
DECISION_EVERY = 2000

ZOOM = """async () => {
  const chart = document.querySelector("[data-section='What everybody did']").chart;
  const length = chart.model.length, times = [];
  let last = performance.now();
  for (let frame = 0; frame < 180; frame += 1) {
    const depth = frame < 90 ? frame / 90 : (180 - frame) / 90;
    const span = length * (0.3 / length) ** depth;
    chart.zoom(length * 0.37 - span * 0.37, length * 0.37 + span * 0.63);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


def write_logs(run_dir: Path, num_spans: int) -> None:
    """Logs as workers would have written them; written by hand, since there are millions of lines."""
    workers = 64 if num_spans > 10_000 else 4
    steps = num_spans // (SPANS_PER_STEP * workers)
    folder = run_dir / "events"
    folder.mkdir(parents=True)
    members, shares = list(range(workers)), [16] * workers
    with (folder / "coordinator.jsonl").open("w") as file:
        print(_opened("coordinator"), file=file)
        view = {"kind": "view_adopted", "t": 0.1, "view": 0, "step": 0, "reason": "made up"}
        print(json.dumps({**view, "members": members, "shares": shares}), file=file)
        for step in range(DECISION_EVERY, steps, DECISION_EVERY):
            made = {"kind": "decision", "t": 1 + step * STEP_S, "what": "publish_view"}
            print(
                json.dumps({**made, "reason": f"step {step}", "numbers": {"step": step}}), file=file
            )
    for worker in range(workers):
        _write_worker(folder / f"worker-{worker}.jsonl", worker, steps, workers)


def _write_worker(path: Path, worker: int, steps: int, workers: int) -> None:
    noise = random.Random(worker)
    mean_s = 0.2 + 0.2 * worker / workers
    with path.open("w") as file:
        print(_opened(f"worker {worker}"), file=file)
        for step in range(steps):
            compute_s = min(0.45, noise.gauss(mean_s, 0.01))
            file.write(
                f'{{"kind":"step_done","t":{1 + (step + 1) * STEP_S!r},"worker":{worker},"step":{step},'
                f'"epoch":0,"view":0,"samples":16,"start":{step * 16 * workers},'
                f'"stop":{(step + 1) * 16 * workers},"compute_s":{compute_s!r},'
                f'"data_s":{noise.uniform(0.001, 0.003)!r},"exchange_s":{0.47 - compute_s!r},'
                f'"update_s":{noise.uniform(0.004, 0.006)!r}}}\n'
            )


def _opened(source: str) -> str:
    first = {"kind": "log_opened", "t": 0.0, "schema": 1, "run": "made up", "source": source}
    return json.dumps({**first, "host": "nowhere", "pid": 1})


def make_in_time(run_dir: Path, page: Path) -> dict[str, float]:
    """Makes the page; how long that took, and this process's peak memory."""
    begin = time.perf_counter()
    page.write_text(make_page(run_dir), encoding="utf-8")
    took_s = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = page.stat().st_size
    return {"make_s": took_s, "cpu_s": time.process_time(), "peak_bytes": peak, "bytes": size}


def look_at(page: Path) -> dict[str, float]:
    """Loads the page in a browser, and zooms."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        begin = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("html[data-ready]", timeout=120_000)
        load_s = time.perf_counter() - begin
        times_ms: list[float] = tab.evaluate(ZOOM)
        browser.close()
    ordered = sorted(times_ms)
    return {
        "load_s": load_s,
        "frames_per_s": 1000 / statistics.mean(times_ms),
        "slowest_ms": ordered[int(0.95 * len(ordered))],
    }


def measure(num_spans: int) -> dict[str, Any]:
    """All figures for a run of so many spans."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, page = Path(folder) / "run", Path(folder) / "report.html"
        write_logs(run_dir, num_spans)
        # In a process of its own, so that the peak memory is that of this page.
        command = [sys.executable, __file__, "--make", str(run_dir), str(page)]
        made = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return {"spans": num_spans, **made, **look_at(page)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, nargs="+", default=[1_000, 100_000, 10_000_000])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--make", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        print(json.dumps(make_in_time(*options.make)))
        return 0
    rows = [measure(count) for count in options.spans]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(
            "| spans | made in | processor | peak memory | size | loaded in | frames/s | 95 % within |"
        )
        print("|---:|---:|---:|---:|---:|---:|---:|---:|")
        for row in rows:
            print(
                f"| {row['spans']:,} | {row['make_s']:.1f} s | {row['cpu_s']:.1f} s "
                f"| {row['peak_bytes'] / 1e6:.0f} MB "
                f"| {row['bytes'] / 1e6:.2f} MB | {row['load_s']:.2f} s | {row['frames_per_s']:.0f} "
                f"| {row['slowest_ms']:.0f} ms |"
            )
    last = rows[-1]
    return int(last["bytes"] > MOST_BYTES or last["frames_per_s"] < LEAST_FRAMES)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`gangline report -o`, `gangline compare`, and the report at the end of a job."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from synthetic_run import SyntheticRun

from gangline.cli import pages
from gangline.cli.main import run_command
from gangline.cli.pages import parse_price, report_at_end, save_page
from gangline.cli.run.end import end_document, print_end
from gangline.spec.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, *, slow_s: float = 0.03) -> Path:
    run = SyntheticRun([0.01, slow_s]).run_steps(30, shares=[10, 10]).end()
    return run.write(folder)


def test_report_writes_a_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    code = run_command(["report", str(written(tmp_path / "run")), "-o", str(page), "--price", "2"])
    assert code == 0
    assert str(page) in capsys.readouterr().out.replace("\n", "")
    assert "made the others wait" in page.read_text(encoding="utf-8")
    assert "(€ " in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "no/such/folder/x.html"], "cannot write the page"),
        (["-o", "x.html", "--price", "much"], "is no price"),
        (["--price", "1"], "are for the page"),
    ],
)
def test_report_refuses_what_makes_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run_command(["report", str(written(tmp_path / "run")), *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_prices_are_for_all_nodes_or_for_one() -> None:
    price = parse_price(["0.5", "n3=1.25", "a=b=2"], "$")
    assert (price.of("n1"), price.of("n3"), price.of("a=b")) == (0.5, 1.25, 2.0)
    with pytest.raises(UsageError, match="-1"):
        parse_price(["-1"], "$")


def test_compare_prints_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(written(tmp_path / "slow")), str(written(tmp_path / "fast", slow_s=0.01))]
    page = tmp_path / "both.html"
    assert run_command(["compare", *runs, "-o", str(page)]) == 0
    assert "times" in capsys.readouterr().out
    assert page.exists()
    assert run_command(["compare", "--json", *runs]) == 0
    lines = json.loads(capsys.readouterr().out)["lines"]
    assert lines[0]["label"] == "samples/s"
    assert lines[0]["ratios"][1]["value"] > 2
    assert run_command(["compare", runs[0]]) == 2


def test_the_report_at_the_end_never_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = written(tmp_path / "run")
    path, problem = report_at_end(run_dir)
    assert path == run_dir / "report.html"
    assert problem == ""
    monkeypatch.setattr(pages, "REPORT_LIMIT_S", -1.0)
    path, problem = report_at_end(run_dir)
    assert path is None
    assert "too long" in problem

    def broken(*_: object, **__: object) -> str:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("gangline.observe.page.make_page", broken)
    assert report_at_end(run_dir) == (None, "ZeroDivisionError: ours")
    assert report_at_end(tmp_path / "nowhere")[0] is None


def test_the_end_of_a_job_names_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job: Any = SimpleNamespace(
        run_dir=written(tmp_path / "run"), run="run", scale=1.0, speeds=[1.0]
    )
    result: Any = SimpleNamespace(status="done", reason="", wall_s=1.0, cause=None, workers=[])
    print_end(job, result, show_traceback=False, with_report=True)
    assert "report: run/report.html\n" in capsys.readouterr().out
    (tmp_path / "run" / "report.html").unlink()
    print_end(job, result, show_traceback=False)
    assert "report" not in capsys.readouterr().out
    document = end_document(job, result, with_report=True)
    assert document["report"] == str(tmp_path / "run" / "report.html")
    assert end_document(job, result)["report"] is None
    monkeypatch.setattr(pages, "REPORT_LIMIT_S", -1.0)
    print_end(job, result, show_traceback=False, with_report=True)
    assert "no report: the logs are too long" in " ".join(capsys.readouterr().out.split())


def test_an_older_page_stays_when_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    save_page("old", path)

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(UsageError, match="No space left"):
        save_page("new", path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

# SPDX-License-Identifier: Apache-2.0
"""`gangline run`: what its flags mean, what it refuses and says, what it shows."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from gangline.cli.main import run_command
from gangline.cli.run import cmd_run
from gangline.cli.run.end import summary_lines
from gangline.cli.run.flags import ClusterFlags
from gangline.cli.run.interrupts import InterruptFilter
from gangline.cli.run.liveline import LiveFeed
from gangline.cli.run.progress import OutputFollower, ProgressLine, ScreenWatcher
from gangline.engines.job import Job
from gangline.engines.result import JobResult
from gangline.eventlog import EventWriter, log_path
from gangline.launch import resolve
from gangline.launch.emulation import enclosed
from gangline.launch.folder import make_run_dir
from gangline.observe import summarize
from gangline.spec.cluster import Cluster, Node
from gangline.spec.config import ExchangeConfig, RunConfig
from gangline.spec.errors import UsageError
from gangline.spec.event import PacingMeasured, RunEnded, StepDone
from gangline.spec.plan import GroupPlan, Plan, Prediction

if TYPE_CHECKING:
    from gangline.spec.exchange.structure import Structure


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text("pass\n")
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run_command(["run", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert not Path("runs").exists()
    return shown.err


def step(number: int, t: float, *, worker: int = 0, samples: int = 8) -> StepDone:
    return StepDone(
        t=t,
        worker=worker,
        step=number,
        epoch=number // 10,
        view=0,
        samples=samples,
        start=0,
        stop=samples,
        compute_s=0.1,
        data_s=0.0,
        exchange_s=0.0,
        update_s=0.0,
    )


# --- flags ----------------------------------------------------------------------------------------


def test_one_worker_runs_when_nothing_is_said() -> None:
    assert [node.speed for node in ClusterFlags().resolve().worker_nodes] == [1.0]


def test_workers_are_counted_per_node() -> None:
    cluster = ClusterFlags(speeds="1, 0.5", workers=2).resolve()
    assert [node.name for node in cluster.worker_nodes] == ["n0", "n0", "n1", "n1"]
    assert [node.speed for node in cluster.worker_nodes] == [1.0, 1.0, 0.5, 0.5]


def test_a_cluster_file_says_it_all(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[nodes]]\nname = "desk"\n[[nodes]]\nname = "pi"\nspeed = 0.1\n')
    cluster = ClusterFlags(cluster=path).resolve()
    assert [node.name for node in cluster.worker_nodes] == ["desk", "pi"]


def test_the_workers_of_a_node_get_its_environment(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        '[[nodes]]\nname = "gpu"\n'
        '[[nodes]]\nname = "cpu"\nworkers = 2\nenvironment = { CUDA_VISIBLE_DEVICES = "" }\n'
    )
    cluster = ClusterFlags(cluster=path).resolve()
    config = RunConfig(run="r", cluster=cluster)
    job = Job(config=config, run_dir=tmp_path, script=tmp_path / "train.py")
    with enclosed(job) as put:
        commands = put.commands({"CUDA_VISIBLE_DEVICES": "0", "HOME": "here"}, cores=4)
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in commands] == ["0", "", ""]
    assert {one.environment["HOME"] for one in commands} == {"here"}


def test_an_environment_of_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[nodes]]\nname = "cpu"\nenvironment = { OMP_NUM_THREADS = 4 }\n')
    with pytest.raises(UsageError, match=r"nodes.*environment"):
        ClusterFlags(cluster=path).resolve()


def test_nodes_with_environments_of_their_own_are_not_probed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[[nodes]]\nname = "cpu"\nenvironment = { OMP_NUM_THREADS = "4" }\n')
    assert run_command(["probe", "--cluster", str(path)]) == 2
    assert "node 'cpu' has an environment of its own" in capsys.readouterr().err


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("speeds", ["1,fast", "1,,0.5", "", "1;0.5", "1,nan"])
def test_speeds_that_are_no_numbers_are_refused(
    script: Path, capsys: pytest.CaptureFixture[str], speeds: str
) -> None:
    message = refusal(capsys, "--speeds", speeds, str(script))
    assert "is not a number" in message
    assert "such as --speeds 1,0.5,0.2" in message


@pytest.mark.parametrize("speeds", ["1,2", "0,1", "1,-0.5"])
def test_speeds_that_are_no_fractions_are_refused(
    script: Path, capsys: pytest.CaptureFixture[str], speeds: str
) -> None:
    assert "above 0 and at most 1" in refusal(capsys, "--speeds", speeds, str(script))


def test_nodes_and_speeds_that_disagree_are_refused(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--nodes", "3", "--speeds", "1,0.5", str(script))
    assert "--nodes 3 and --speeds 1,0.5 disagree" in message
    assert "there are 2" in message


@pytest.mark.parametrize("flag", ["--nodes", "--workers"])
def test_a_count_below_one_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert f"{flag} must be at least 1, not 0" in refusal(capsys, flag, "0", str(script))


@pytest.mark.parametrize(
    "beside", [["--nodes", "2"], ["--speeds", "1,0.5"], ["--workers", "2"]], ids=lambda b: b[0]
)
def test_a_cluster_file_beside_other_flags_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], beside: list[str]
) -> None:
    message = refusal(capsys, "--cluster", "c.toml", *beside, str(script))
    assert f"--cluster and {beside[0]} cannot be given together" in message


def test_a_missing_cluster_file_is_named(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--cluster", "c.toml", str(script))
    assert "cannot read the cluster file c.toml: No such file" in message


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ("1,2,3", "has 3 shares for 2 workers"),
        ("1,x", "'x' is not a number"),
        ("1,-1", "no share may be below 0"),
        ("0,0", "one must be above it"),
    ],
)
def test_shares_that_fit_nobody_are_refused(
    script: Path, capsys: pytest.CaptureFixture[str], shares: str, expected: str
) -> None:
    assert expected in refusal(capsys, "--nodes", "2", "--shares", shares, str(script))


def test_an_unknown_answer_to_wrong_gradients_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--non-finite", "ignore", str(script))
    assert "--non-finite must be one of keep, evict, not 'ignore'" in message


def test_an_unknown_transport_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--transport", "pigeon", str(script))
    assert "--transport 'pigeon' is not known; choose one of: wire, wire-tcp, gloo, nccl" in message


PLAN = GroupPlan(
    name="all",
    topology="parameter-server",
    leader="n2",
    groups=(
        GroupPlan(name="a", topology="ring", leader="n1", members=("n0", "n1")),
        GroupPlan(name="b", topology="solo", leader="n2", members=("n2",)),
    ),
)


def written_plan(root: GroupPlan, *, path: str = "plan.json") -> str:
    nodes = tuple(name for leaf in root.leaves() for name in leaf.members)
    prediction = Prediction(compute_s=1, exchange_s=0, hidden_s=0, step_s=1)
    plan = Plan(
        nodes=nodes,
        shares=(1,) * len(nodes),
        root=root,
        prediction=prediction,
        kind="compute-bound",
        grouping="robust",
        chosen="by groups",
        reasons=(),
    )
    Path(path).write_bytes(msgspec.json.encode(plan))
    return path


def tree(structure: str, nodes: list[str]) -> Structure | None:
    """What the configuration of workers on these nodes comes to."""
    counts = {name: nodes.count(name) for name in nodes}
    cluster = Cluster(nodes=tuple(Node(name=name, workers=n) for name, n in counts.items()))
    config = RunConfig(cluster=cluster, exchange=ExchangeConfig(structure=structure))
    return resolve(config).exchange.tree


def test_a_plan_says_who_exchanges_with_whom(script: Path) -> None:
    nodes = ["n0", "n1", "n2"]
    assert tree("flat", nodes) is None
    assert tree("auto", nodes) is None
    assert str(tree(written_plan(PLAN), nodes)) == "server at 2(ring(0, 1*), ring(2*))"


def test_a_plan_of_workers_or_of_their_nodes_fits_a_node_with_several(script: Path) -> None:
    nodes = ["n0", "n0", "n1"]
    by_node = GroupPlan(name="all", topology="ring", leader="n1", members=("n1", "n0"))
    assert str(tree(written_plan(by_node), nodes)) == "ring(2*, 0, 1)"
    by_worker = GroupPlan(
        name="all", topology="ring", leader="n0.1", members=("n0.1", "n0.0", "n1")
    )
    assert str(tree(written_plan(by_worker), nodes)) == "ring(1*, 0, 2)"


def test_a_structure_that_is_no_plan_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--structure", "magic", str(script))
    assert "--structure magic is neither `auto` nor `flat` nor a file" in message


def test_a_plan_for_other_nodes_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--nodes", "2", "--structure", written_plan(PLAN), str(script))
    assert "it also names n2; plan for these nodes" in " ".join(message.split())


def test_a_missing_script_is_named_with_where_it_was_looked_for(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "trian.py")
    assert "there is no script trian.py (looked in " in message
    assert str(Path.cwd()) in message


def test_a_folder_is_not_a_script(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("code").mkdir()
    assert "code is a folder; give the python script in it" in refusal(capsys, "code")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"def f(:\n", "train.py, line 1 is not python"),
        (b"\x7fELF\x02\x01\x00\x00", "train.py is not python: source code string cannot"),
        (b"\xff\xfe\xfa", "is not python"),
    ],
    ids=["syntax", "binary", "encoding"],
)
def test_what_is_not_python_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], content: bytes, expected: str
) -> None:
    script.write_bytes(content)
    assert expected in refusal(capsys, str(script))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("nowhere.at.all", "there is no module nowhere (looked in "),
        ("package.none", "there is no module package.none"),
        ("package", "package is a package without __main__.py"),
        ("package.train.more", "package.train is a module, and no package"),
        ("train.py", "write it with dots and without .py, such as -m package.train"),
        ("a-b", "this is not the name of a module; write it with dots"),
    ],
)
def test_a_module_that_cannot_be_run_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], module: str, words: str
) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("raise AssertionError('nothing is imported')")
    Path("package/train.py").touch()
    assert words in refusal(capsys, "-m", module, "--lr", "0.1")


def test_no_script_at_all_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to run: give a script" in refusal(capsys, "--nodes", "2")


# --- the run folder -------------------------------------------------------------------------------


def test_a_run_is_named_after_its_script_and_time(script: Path) -> None:
    names = {make_run_dir(script, name=None, run_dir=None)[0] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("train-2") for name in names)


def test_a_name_chooses_the_folder_in_runs(script: Path) -> None:
    assert make_run_dir(script, name="digits", run_dir=None) == ("digits", Path("runs/digits"))
    assert Path("runs/digits").is_dir()


def test_a_run_dir_names_the_run(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    assert make_run_dir(script, name=None, run_dir=folder) == ("here", folder)
    folder.rmdir()
    assert make_run_dir(script, name="digits", run_dir=folder) == ("digits", folder)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_name_that_is_no_folder_is_refused(script: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a folder"):
        make_run_dir(script, name=name, run_dir=None)


@pytest.mark.parametrize(("flag", "folder"), [("--run-dir", "old"), ("--name", "runs/old")])
def test_the_folder_of_another_run_is_refused(
    script: Path, capsys: pytest.CaptureFixture[str], flag: str, folder: str
) -> None:
    (Path(folder) / "events").mkdir(parents=True)
    assert run_command(["run", flag, "old", str(script)]) == 2
    message = capsys.readouterr().err
    assert f"{folder} already holds a run" in message
    assert f"choose another {flag}" in message


def test_a_folder_that_cannot_be_made_is_named(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(capsys, "--run-dir", f"{script}/inside", str(script))
    assert "cannot make the run folder train.py/inside: Not a directory" in message


# --- what is shown --------------------------------------------------------------------------------


def test_progress_is_a_plain_line_now_and_then_when_there_is_no_terminal(tmp_path: Path) -> None:
    now_s = [0.0]
    shown = io.StringIO()
    progress = ProgressLine(Console(file=shown), LiveFeed(tmp_path), clock=lambda: now_s[0])
    for now_s[0] in (1.0, 11.0, 12.0, 30.0):
        progress.tick()
    progress.close()
    assert shown.getvalue() == "starting\n"


def test_a_plain_line_of_progress_does_not_get_too_long(tmp_path: Path) -> None:
    now_s, shown, feed = [0.0], io.StringIO(), LiveFeed(tmp_path)
    feed.stage = "x" * 300
    progress = ProgressLine(Console(file=shown, width=400), feed, clock=lambda: now_s[0])
    now_s[0] = 11.0
    progress.tick()
    assert shown.getvalue() == "x" * 159 + "…\n"


def test_the_line_says_who_is_waited_for_before_the_first_step(tmp_path: Path) -> None:
    job = Job(
        config=RunConfig(cluster=Cluster.of_speeds((1.0, 1.0))),
        run_dir=tmp_path,
        script=tmp_path / "train.py",
    )
    shown = io.StringIO()
    screen = ScreenWatcher(job, Console(file=shown), show_progress=True, show_output=False)
    with screen:
        assert screen._feed.line() == "starting"
        screen.begins(1)
        assert screen._feed.line() == "starting: 1 of 2 workers are here"
        screen.begins(2)
        assert screen._feed.line() == "preparing: all 2 workers are here"
        screen.main_is(0)
        assert screen._feed.line() == "prepared: the first step is under way"


def test_the_line_follows_a_worker_that_joined_whatever_its_number(tmp_path: Path) -> None:
    job = Job(
        config=RunConfig(),
        run_dir=tmp_path,
        script=tmp_path / "train.py",
        coordinator="ws://127.0.0.1:1",
    )
    screen = ScreenWatcher(job, Console(file=io.StringIO()), show_progress=True, show_output=False)
    with screen:
        screen.tick()
        with EventWriter(log_path(tmp_path, "worker 7"), run="r", source="worker 7") as events:
            events.write(step(3, 1.0))
        screen.tick()
        screen._feed.refresh()
        assert screen._feed.line() == "epoch 0  step 3"


def test_a_greeting_is_shown_once_as_soon_as_there_is_one(tmp_path: Path) -> None:
    job = Job(config=RunConfig(), run_dir=tmp_path, script=tmp_path / "train.py")
    shown = io.StringIO()
    lines: list[str] = []
    screen = ScreenWatcher(
        job, Console(file=shown), show_progress=False, show_output=False, greeting=lambda: lines
    )
    with screen:
        screen.tick()
        lines.append("[hello]")
        screen.tick()
        screen.tick()
    assert shown.getvalue() == "[hello]\n"


def test_progress_is_one_rewritten_line_when_there_is_a_terminal(tmp_path: Path) -> None:
    now_s = [0.0]
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=60)
    progress = ProgressLine(console, LiveFeed(tmp_path), clock=lambda: now_s[0])
    for now_s[0] in (1.0, 2.0):
        progress.tick()
    progress.close()
    assert shown.getvalue().count("starting") >= 2
    assert "\x1b[2K" in shown.getvalue()


@pytest.mark.parametrize(
    ("error", "is_shown"), [("KeyboardInterrupt", False), ("ValueError: bad", True), ("", True)]
)
def test_where_an_interrupt_met_a_worker_is_not_shown(error: str, is_shown: bool) -> None:
    frames = ["Traceback (most recent call last):", '  File "train.py", line 3', "", "    f()"]
    lines = ["before", *frames, *([error, "after"] if error else [])]
    interrupts = InterruptFilter()
    shown = [each for line in lines for each in interrupts.take(line.encode())]
    shown += interrupts.close()
    expected = lines if is_shown else ["before", "after"]
    assert [line.decode() for line in shown] == expected


def test_output_is_shown_by_whole_lines_with_the_worker_before_them(tmp_path: Path) -> None:
    shown = io.StringIO()
    path = tmp_path / "3.log"
    console = Console(file=shown, soft_wrap=True)
    follower = OutputFollower(3, path, console, has_prefix=True, is_shown=True)
    follower.tick()
    path.write_bytes(b"one [bold]\ntw")
    follower.tick()
    assert shown.getvalue() == "[3] one [bold]\n"
    path.write_bytes(b"one [bold]\ntwo\nthree")
    follower.close()
    assert shown.getvalue() == "[3] one [bold]\n[3] two\n[3] three\n"


def test_whoever_becomes_main_is_shown_from_then_on(tmp_path: Path) -> None:
    shown = io.StringIO()
    config = RunConfig(run="r", cluster=Cluster.of_speeds((1.0, 1.0)))
    job = Job(config=config, run_dir=tmp_path, script=Path("train.py"))
    console = Console(file=shown, soft_wrap=True)
    logs = [job.log_of(worker) for worker in (0, 1)]
    logs[0].parent.mkdir()
    with ScreenWatcher(job, console, show_progress=False, show_output=False) as screen:
        logs[0].write_text("first\nhalf")
        logs[1].write_text("not main yet\n")
        screen.tick()
        assert shown.getvalue() == "first\n"
        screen.main_is(1)
        with logs[0].open("a") as log:
            log.write("not main any more\n")
        with logs[1].open("a") as log:
            log.write("10%\r20%\r100%\nsecond\n")
        screen.main_is(7)  # joined from elsewhere: its output is not here
    assert shown.getvalue() == "first\nhalf\n100%\nsecond\n"
    assert (screen.has_shown(0), screen.has_shown(1), screen.has_shown(7)) == (True, True, False)


def test_the_end_says_how_well_the_speeds_were_hit() -> None:
    events = [step(number, number * 0.1) for number in range(20)]
    paced = [
        PacingMeasured(t=3.0, worker=0, asked=0.4, achieved=0.392, cpu_s=1.0, slept_s=1.5),
        RunEnded(t=3.0, status="done", reason="", wall_s=3.0),
    ]
    lines = summary_lines(summarize([*events, *paced]))
    assert lines[0].startswith("20 steps, 160 samples, ")
    assert "samples/s" in lines[0]
    assert lines[1] == "emulated speeds achieved: 0.392 of 0.4 (worst: worker 0, -2.0%)"


@pytest.mark.parametrize(("status", "num_lines"), [("done", 1), ("failed", 0), ("interrupted", 0)])
def test_a_run_without_steps_asks_for_prepare_only_when_it_was_done(
    status: str, num_lines: int
) -> None:
    ended = RunEnded(t=time.time(), status=status, reason="", wall_s=1.0)
    lines = summary_lines(summarize([ended]))
    assert len(lines) == num_lines
    assert all("gangline.prepare" in line for line in lines)


@pytest.mark.parametrize(("status", "is_silent"), [("done", True), ("failed", False)])
def test_a_quiet_run_tells_only_what_went_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    is_silent: bool,
) -> None:
    (tmp_path / "train.py").write_text("")
    result = JobResult(status=status, reason="it went wrong", wall_s=1.0, workers=())

    def run_job(job: Job, *, watcher: ScreenWatcher, make_engine: object) -> JobResult:
        watcher.begins(1)
        watcher.note("hint", "something to know")
        watcher.tick()
        return result

    monkeypatch.setattr(cmd_run, "run_job", run_job)
    place = ["--run-dir", str(tmp_path / "run"), str(tmp_path / "train.py")]
    assert run_command(["run", "--quiet", *place]) == (0 if is_silent else 1)
    shown = capsys.readouterr()
    assert (shown.out + shown.err == "") == is_silent
    assert ("it went wrong" in shown.err) != is_silent

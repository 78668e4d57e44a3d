# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing with atheris of everything that reads what others wrote.

    make fuzz-atheris FUZZ_S=60
    python tests/fuzz/harness.py frames 60

Each target is given bytes, and may refuse them with an error of ours, which must say something. Any
other exception is a finding: libFuzzer stops, and leaves the bytes in `.cache/findings`.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
FINDINGS = ROOT / ".cache" / "findings"
SCRATCH = ROOT / ".cache" / "fuzzing" / str(os.getpid())
"""Removed when the next one begins: libFuzzer ends the process without a word."""

sys.path.insert(0, str(ROOT / "tests" / "unit"))

with atheris.instrument_imports(include=["gangline", "tomllib"]):
    import msgspec
    import numpy as np
    import torch
    from checkpoint_jobs import INTRODUCTION

    from gangline.collectives.compression.codecs import codec_of
    from gangline.collectives.wire.joining import frames
    from gangline.collectives.wire.operation import Kind, Operation, check_same
    from gangline.coordinator import Hub
    from gangline.coordinator.kept.records import Founded
    from gangline.coordinator.sanity import check_message
    from gangline.coordinator.server.journal import JOURNAL_NAME, open_journal
    from gangline.coordinator.settings import Settings
    from gangline.eventlog import EventWriter, NullWriter
    from gangline.eventlog.reader import LogNotes, read_events, tail_events
    from gangline.planning.planner import make_plan
    from gangline.planning.synthetic import Shape, synthesize
    from gangline.protocol import messages
    from gangline.spec.cluster import Cluster
    from gangline.spec.errors import ExchangeError, GanglineError, LogError, UsageError
    from gangline.spec.event import Decision
    from gangline.spec.exchange.address import WireAddress
    from gangline.spec.exchange.compression import Compression
    from gangline.spec.exchange.structure import Structure
    from gangline.spec.faults import FaultPlan
    from gangline.spec.plan import Plan
    from gangline.spec.profile import ClusterProfile
    from gangline.spec.workload import Workload
    from gangline.worker.checkpoint.files import CheckpointFolder, Contents, Manifest

WORKLOAD = Workload(global_batch=64, gradient_bytes=4_000_000)
LENGTH = 40
CODECS = [
    codec_of(Compression.parse(name), generator=np.random.default_rng(0))
    for name in ("fp16", "8-bit", "1-bit", "terngrad", "top-k(0.1)", "sparse-binary(0.1)")
]
OPERATION = Operation(Kind.ALL_REDUCE, 4, 1, 10, header_words=7)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@contextmanager
def refused_by(*kinds: type[Exception], naming: str = "") -> Iterator[None]:
    """What is inside may end with such an error, if that says something."""
    try:
        yield
    except kinds as error:
        if not str(error) or naming not in str(error):
            raise AssertionError(f"{error!r} does not name {naming!r}") from error


def fuzz_frames(data: bytes) -> None:
    """What arrives at a worker's port, and what opens an operation on a link."""
    with refused_by(ExchangeError):
        kind, length = frames.decode_prefix(data[: frames.PREFIX_BYTES])
        body = frames.decode_body(kind, data[frames.PREFIX_BYTES :][:length])
        assert isinstance(body, kind)
    with refused_by(ExchangeError):
        check_same(OPERATION, data[:32], peer=1, type_names={1: "float32"})


def fuzz_codecs(data: bytes) -> None:
    """A compressed gradient, as a member sends it; the first byte says by which codec."""
    codec = CODECS[data[0] % len(CODECS) if data else 0]
    with refused_by(ExchangeError):
        tensor = codec.decode(np.frombuffer(data[1:], dtype=np.uint8), LENGTH)
        assert tensor.shape == (LENGTH,)


def _hello(worker: int) -> messages.Hello:
    return messages.Hello(
        protocol=messages.PROTOCOL_VERSION,
        run="fuzz",
        worker=worker,
        host="here",
        pid=worker + 1,
        address=WireAddress(host="127.0.0.1", port=1),
    )


def _ready() -> messages.Ready:
    return messages.Ready(
        global_batch=8, minimum=1, allocation="balanced", shares=None, max_samples=None, seed=0
    )


def fuzz_messages(data: bytes) -> None:
    """What a worker and a coordinator send each other; and what the hub makes of a worker's."""
    with refused_by(*UNREADABLE):
        messages.decode_from_coordinator(data)
    with refused_by(*UNREADABLE, UsageError):
        message = messages.decode_from_worker(data)
        check_message(message)
        _tell_hub(message)


def _tell_hub(message: messages.FromWorker) -> None:
    hub = Hub(Settings(run="fuzz", expected_workers=2), events=NullWriter(), clock=lambda: 0.0)
    for worker in (0, 1):
        hub.connect(_hello(worker))
    for worker in (0, 1):
        hub.receive(worker, _ready())
    with refused_by(UsageError, KeyError):
        hub.receive(1, message)
    hub.tick()
    msgspec.json.encode(hub.status())


def fuzz_log(data: bytes) -> None:
    """An event log, read whole, with its damage noted, and from its end."""
    path = SCRATCH / "log.jsonl"
    path.write_bytes(data)
    for read in (
        lambda: list(read_events(path)),
        lambda: list(read_events(path, notes=LogNotes(path=str(path)))),
        lambda: tail_events(path, 0),
    ):
        with refused_by(LogError, naming=str(path)):
            read()


def fuzz_journal(data: bytes) -> None:
    """A coordinator's journal: what is whole is kept, and what follows the damage is not lost."""
    path = SCRATCH / JOURNAL_NAME
    path.write_bytes(data)
    journal = open_journal(SCRATCH, NullWriter())
    count = len(journal.records)
    journal.append(Founded(founders=(7,)))
    journal.close()
    again = open_journal(SCRATCH, NullWriter())
    assert len(again.records) == count + 1
    again.close()


def fuzz_files(data: bytes) -> None:
    """Cluster, fault plan, workload, profile and plan; the first byte says which."""
    path = SCRATCH / "file"
    path.write_bytes(data[1:])
    readers: tuple[Callable[[], object], ...] = (
        lambda: Cluster.from_toml(path),
        lambda: FaultPlan.from_toml(path),
        lambda: Workload.from_file(path),
        lambda: _plan(path),
        lambda: _carry_out(path),
    )
    with refused_by(GanglineError):
        readers[data[0] % len(readers) if data else 0]()


def _plan(path: Path) -> None:
    profile = ClusterProfile.from_file(path)
    if len(profile.nodes) <= 16:  # a plan of hundreds takes its time, which is no finding
        make_plan(profile, WORKLOAD, rng=np.random.default_rng(1))


def _carry_out(path: Path) -> None:
    plan = Plan.from_file(path)
    Structure.from_plan(plan.root, {name: [i] for i, name in enumerate(plan.nodes)})


def fuzz_checkpoint(data: bytes) -> None:
    """A checkpoint whose manifest, state or tensors are something else; the first byte says which."""
    folder = CheckpointFolder(SCRATCH / "checkpoints")
    if not folder.steps():
        _write_checkpoint(folder)
    names = ("manifest.json", "state.json", "model.safetensors")
    path = folder.path_of(1) / names[data[0] % len(names) if data else 0]
    sound = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        with refused_by(LogError, naming=str(folder.path_of(1))):
            _, contents = folder.read(1)
            assert float(contents.tensors["model.safetensors"]["w"][0]) == 1
    finally:
        path.write_bytes(sound)


def _write_checkpoint(folder: CheckpointFolder) -> None:
    manifest = Manifest(
        run="r", worker=0, step=1, epoch=0, start=0, seed=0, introduction=INTRODUCTION
    )
    tensors = {
        "state.safetensors": {"0": torch.ones(2)},
        "model.safetensors": {"w": torch.ones(3)},
    }
    folder.write(manifest, Contents(b'{"value":1}', tensors))


# --- what is sound, to begin with --------------------------------------------------------------------


def sound_inputs(name: str) -> list[bytes]:
    """Inputs that are read, for the fuzzer to bend."""
    match name:
        case "frames":
            nonce = b"n" * 32
            bodies: list[frames.Body] = [
                frames.Challenge(nonce=nonce, mac=nonce),
                frames.Proof(mac=nonce),
                frames.Welcome(),
                frames.Refusal(reason="no"),
            ]
            return [*(frames.encode(body) for body in bodies), OPERATION.encode()]
        case "messages":
            said = [
                _ready(),
                _hello(1),
                messages.Measured(step=0, view=0, samples=4, compute_s=0.1),
                messages.Metrics(operations_per_s=1.0, memory_bytes=1.0, latency_s=0.1),
                messages.Ping(sent_s=1.0),
                messages.Failed(group=0, step=0, error="broken"),
                messages.Leaving(),
            ]
            return [messages.encode(message) for message in said]
        case "codecs":
            flat = torch.linspace(-1, 1, LENGTH)
            return [bytes([i]) + codec.encode(flat).tobytes() for i, codec in enumerate(CODECS)]
        case "log":
            return [_log()]
        case "journal":
            return [_journal()]
        case "files":
            return _files()
        case _:
            folder = CheckpointFolder(SCRATCH / "checkpoints")
            _write_checkpoint(folder)
            names = ("manifest.json", "state.json", "model.safetensors")
            return [bytes([i]) + (folder.path_of(1) / n).read_bytes() for i, n in enumerate(names)]


def _log() -> bytes:
    path = SCRATCH / "sound.jsonl"
    with EventWriter(path, run="r", source="worker 0") as events:
        events.write(Decision(t=1.0, what="w", reason="r", numbers={"n": 1.0}))
    return path.read_bytes()


def _journal() -> bytes:
    journal = open_journal(SCRATCH, NullWriter())
    for number in range(3):
        journal.append(Founded(founders=tuple(range(number + 1))))
    journal.close()
    return (SCRATCH / JOURNAL_NAME).read_bytes()


def _files() -> list[bytes]:
    profile = synthesize(Shape.from_text("sites=2,racks=1,nodes=2"), rng=np.random.default_rng(1))
    plan = make_plan(profile, WORKLOAD, rng=np.random.default_rng(1))
    return [
        b'\0[[nodes]]\nname = "desk"\nspeed = 0.5\nworkers = 2\n',
        b'\1[[faults]]\nworker = 1\nstep = 12\nwhere = "exchange"\nkind = "kill"\n',
        b"\2global_batch = 64\ngradient_bytes = 4e6\n",
        b"\3" + profile.to_json(),
        b"\4" + msgspec.json.encode(plan),
    ]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": fuzz_frames,
    "codecs": fuzz_codecs,
    "messages": fuzz_messages,
    "log": fuzz_log,
    "journal": fuzz_journal,
    "files": fuzz_files,
    "checkpoint": fuzz_checkpoint,
}


def main(name: str, seconds: str) -> None:
    """Fuzzes one target for so long. libFuzzer ends the process."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SCRATCH.parent, ignore_errors=True)
    corpus = SCRATCH / "corpus"
    corpus.mkdir(parents=True)
    for number, content in enumerate(sound_inputs(name)):
        (corpus / str(number)).write_bytes(content)
    flags = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={FINDINGS}/{name}-",
        "-max_len=8192",
        "-timeout=120",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])

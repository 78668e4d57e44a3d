# SPDX-License-Identifier: Apache-2.0
"""Scenario files, and the workers that they describe."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.simulation import Scenario
from gangline.simulation.scenario import SimulatedNode, Throttle
from gangline.spec.cluster import Cluster
from gangline.spec.errors import UsageError

FILE = """
exchange_s = 0.003
noise = 0.1
first_step_factors = [5.0, 2.0]

[[nodes]]
name = "desk"
speed = 0.5
noise = 0.0

[[nodes]]
name = "rack"
workers = 2
fixed_s = 0.01
per_sample_s = 0.001
max_samples = 32
throttles = [{ from_step = 2, to_step = 4, factor = 3.0 }]
"""


@pytest.fixture
def write(tmp_path):
    def to_file(text):
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return path

    return to_file


def test_a_file_gives_every_worker_its_numbers(write):
    scenario = Scenario.from_toml(write(FILE))
    workers = scenario.simulated_workers()
    np.testing.assert_allclose(workers.fixed_s, [0.004, 0.01, 0.01])
    np.testing.assert_allclose(workers.per_sample_s, [0.0004, 0.001, 0.001])
    np.testing.assert_allclose(workers.noise, [0.0, 0.1, 0.1])
    assert [node.name for node in scenario.worker_nodes] == ["desk", "rack", "rack"]
    assert scenario.ceilings(global_batch=99) == (99, 32, 32)
    np.testing.assert_allclose(workers.slowdown(1), [1, 1, 1])
    np.testing.assert_allclose(workers.slowdown(3), [1, 3, 3])
    np.testing.assert_allclose(workers.slowdown(4), [1, 1, 1])


def test_a_plain_cluster_file_is_a_scenario(write):
    path = write('[[nodes]]\nname = "a"\n\n[[nodes]]\nname = "b"\nspeed = 0.2\nworkers = 2\n')
    nodes = Scenario.from_toml(path).worker_nodes
    assert [(n.name, n.speed) for n in nodes] == [
        (n.name, n.speed) for n in Cluster.from_toml(path).worker_nodes
    ]


def one_worker(**fields):
    return Scenario(nodes=(SimulatedNode(name="n", **fields),), noise=0.0).simulated_workers()


def compute_s(workers, step, samples=10, seed=0):
    rng = np.random.default_rng(seed)
    return workers.compute_s(
        np.array([samples]), step=step, slowdown=workers.slowdown(step), rng=rng
    )[0]


def test_a_step_takes_a_plus_b_n_without_noise():
    assert compute_s(one_worker(fixed_s=1.0, per_sample_s=0.5), 0) == 6.0


def test_drift_makes_every_step_longer():
    workers = one_worker(fixed_s=1.0, per_sample_s=0.5, drift=0.01)
    assert compute_s(workers, 100) == pytest.approx(6 * 1.01**100)


def test_noise_spreads_steps_evenly_around_the_model():
    workers = one_worker(fixed_s=1.0, per_sample_s=0.5, noise=0.2)
    times = np.array([compute_s(workers, 0, seed=seed) for seed in range(400)])
    assert np.median(times) == pytest.approx(6, rel=0.05)
    assert np.log(times).std() == pytest.approx(0.2, rel=0.15)


def test_pauses_come_as_often_as_asked():
    workers = one_worker(fixed_s=1.0, per_sample_s=0.5, pause_probability=0.25, pause_s=7.0)
    times = [compute_s(workers, 0, seed=seed) for seed in range(400)]
    assert set(times) == {6.0, 13.0}
    assert times.count(13.0) / 400 == pytest.approx(0.25, abs=0.08)


def test_first_steps_take_longer():
    scenario = Scenario(
        nodes=(SimulatedNode(name="n", fixed_s=1.0, per_sample_s=0.5),),
        noise=0.0,
        first_step_factors=(5.0, 2.0),
    )
    workers = scenario.simulated_workers()
    assert [compute_s(workers, step) for step in range(3)] == [30.0, 12.0, 6.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = []", "at least one node"),
        ('[[nodes]]\nname="a"\n[[nodes]]\nname="a"', "used more than once: a"),
        ('[[nodes]]\nname="a"\nspede=1.0', "unknown field `spede`"),
        ("[[nodes]\n", "is not usable"),
        ('exchange_s=-1.0\n[[nodes]]\nname="a"', "exchange_s must be 0 or more, not -1.0"),
        (
            'first_step_factors=[0.0]\n[[nodes]]\nname="a"',
            "first_step_factors must be above 0, not",
        ),
        ('view_lag_steps=0\n[[nodes]]\nname="a"', "view_lag_steps must be at least 1, not 0"),
        ('per_sample_s=0.0\n[[nodes]]\nname="a"', "per_sample_s must be above 0, not 0.0"),
    ],
)
def test_the_message_names_the_mistake_when_a_file_has_one(write, text, message):
    with pytest.raises(UsageError, match=message):
        Scenario.from_toml(write(text))


def test_the_message_names_the_file_when_there_is_none(tmp_path):
    with pytest.raises(
        UsageError, match=r"cannot read the cluster file .*none\.toml: No such file"
    ):
        Scenario.from_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speed", 0.0),
        ("workers", 0),
        ("fixed_s", -0.1),
        ("per_sample_s", 0.0),
        ("noise", -0.1),
        ("drift", 1.0),
        ("pause_s", -1.0),
        ("pause_probability", 1.5),
        ("max_samples", 0),
        ("memory_bytes", -1.0),
        ("latency_s", float("inf")),
    ],
)
def test_the_message_names_the_field_when_a_node_cannot_be(field, value):
    with pytest.raises(UsageError, match=rf"node 'x': {field} must be .*, not {value}"):
        SimulatedNode(name="x", **{field: value})


def test_a_throttle_must_last():
    with pytest.raises(UsageError, match=r"from_step = 5, to_step = 5, factor = 2.0"):
        Throttle(from_step=5, to_step=5, factor=2.0)

# SPDX-License-Identifier: Apache-2.0
"""Pacing: how much is slept, when, and that the model stays the object that it was."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from torch import nn

from gangline.emulation.pacing import Pacer, pace
from gangline.emulation.scaling import describe_scale, scale_speeds
from gangline.spec.errors import UsageError


class FakeMachine:
    """A CPU clock that is moved by hand and a sleep that only notes."""

    def __init__(self, *, oversleep_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.oversleep_s = oversleep_s
        self.sleeps: list[float] = []

    def compute(self, cpu_s: float) -> None:
        self.now_s += cpu_s

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> float:
        self.sleeps.append(duration_s)
        return duration_s + self.oversleep_s


class Busy(torch.autograd.Function):
    """Takes CPU time of a fake machine, forwards and backwards."""

    @staticmethod
    def forward(ctx, x, machine, cpu_s):
        ctx.machine, ctx.cpu_s = machine, cpu_s
        machine.compute(cpu_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.machine.compute(ctx.cpu_s)
        return gradient, None, None


class BusyLinear(nn.Module):
    def __init__(self, machine: FakeMachine, cpu_s: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.machine, self.cpu_s = machine, cpu_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Busy.apply(self.linear(x), self.machine, self.cpu_s)


def paced_on(machine: FakeMachine, speed: float) -> Pacer:
    return Pacer(speed, clock=machine.clock, sleep=machine.sleep)


@pytest.mark.parametrize(("speed", "slept_s"), [(1.0, 0.0), (0.5, 1.0), (0.2, 4.0), (0.1, 9.0)])
def test_the_debt_is_paid_in_proportion_when_a_step_settles(speed: float, slept_s: float) -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, speed)
    pacer.begin()
    machine.compute(1.0)
    pacer.settle()
    assert sum(machine.sleeps) == pytest.approx(slept_s)
    assert pacer.report() == pytest.approx((speed, speed, 1.0, slept_s))


def test_time_outside_a_step_is_not_paced() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    machine.compute(5.0)
    pacer.begin()
    machine.compute(1.0)
    pacer.settle()
    machine.compute(7.0)
    pacer.begin()
    pacer.settle()
    assert pacer.report().cpu_s == pytest.approx(1.0)


def test_a_pause_within_a_step_is_not_paced() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    pacer.begin()
    for _ in range(2):
        machine.compute(1.0)
        pacer.pause()
        machine.compute(5.0)
        pacer.resume()
    pacer.settle()
    assert pacer.report().cpu_s == pytest.approx(2.0)


def test_a_step_with_two_backward_passes_settles_twice() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    pacer.begin()
    for cpu_s in (1.0, 2.0):
        machine.compute(cpu_s)
        pacer.settle()
    assert machine.sleeps == pytest.approx([1.0, 2.0])


def test_evaluation_is_not_paced() -> None:
    machine = FakeMachine()
    model = BusyLinear(machine, 0.010)
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    pacer.begin()
    with torch.no_grad():
        model(torch.ones(2, 4))
    assert machine.sleeps == []
    pacer.remove()


def test_only_the_newest_begin_counts_when_a_step_was_not_settled() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    pacer.begin()
    machine.compute(3.0)
    pacer.begin()
    machine.compute(1.0)
    pacer.settle()
    assert sum(machine.sleeps) == pytest.approx(1.0)


def test_sleeping_much_too_long_counts_for_the_next_debt() -> None:
    machine = FakeMachine(oversleep_s=0.002)
    pacer = paced_on(machine, 0.5)
    for _ in range(2):
        pacer.begin()
        machine.compute(0.010)
        pacer.settle()
    assert machine.sleeps == pytest.approx([0.010, 0.008])


def test_sleeping_a_little_too_long_is_made_up_for_bit_by_bit() -> None:
    machine = FakeMachine(oversleep_s=0.001)
    pacer = paced_on(machine, 0.5)
    for _ in range(100):
        pacer.begin()
        machine.compute(0.010)
        pacer.settle()
    assert machine.sleeps[1] > 0.0098
    assert machine.sleeps[-1] == pytest.approx(0.009, rel=0.01)
    assert pacer.report().achieved == pytest.approx(0.5, rel=0.01)


def test_a_suspended_machine_does_not_make_later_steps_fast() -> None:
    machine = FakeMachine(oversleep_s=60.0)
    pacer = paced_on(machine, 0.5)
    for _ in range(2):
        pacer.begin()
        machine.compute(0.500)
        pacer.settle()
    assert machine.sleeps[1] == pytest.approx(0.400)


def test_sleeps_are_spread_over_forward_and_backward() -> None:
    machine = FakeMachine()
    layers = [BusyLinear(machine, 0.010) for _ in range(3)]
    model = nn.Sequential(*layers)
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    pacer.begin()
    loss = model(torch.ones(2, 4)).sum()
    assert machine.sleeps == pytest.approx([0.010] * 3)
    loss.backward()
    assert machine.sleeps == pytest.approx([0.010] * 6)
    pacer.settle()
    assert pacer.report().achieved == pytest.approx(0.5)
    pacer.remove()


def test_a_debt_below_the_quantum_is_carried_on() -> None:
    machine = FakeMachine()
    model = nn.Sequential(*(BusyLinear(machine, 0.0003) for _ in range(4)))
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    pacer.begin()
    model(torch.ones(2, 4))
    assert machine.sleeps == pytest.approx([0.0006, 0.0006])
    pacer.remove()


def test_pacing_runs_before_hooks_that_are_registered_later() -> None:
    machine = FakeMachine()
    model = BusyLinear(machine, 0.010)
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    slept_when_sent: list[int] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda _: slept_when_sent.append(len(machine.sleeps))
        )
    pacer.begin()
    model(torch.ones(2, 4)).sum().backward()
    assert slept_when_sent == [2, 2]
    pacer.remove()


def test_a_frozen_parameter_stays_frozen_and_is_paced_when_it_is_unfrozen() -> None:
    machine = FakeMachine()
    model = BusyLinear(machine, 0.010)
    model.linear.requires_grad_(False)
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.linear.requires_grad_(True)
    pacer.begin()
    model(torch.ones(2, 4)).sum().backward()
    assert len(machine.sleeps) == 2
    pacer.remove()


def test_several_models_of_one_loop_pay_once() -> None:
    machine = FakeMachine()
    first, second = BusyLinear(machine, 0.010), BusyLinear(machine, 0.010)
    pacer = pace([first, second], 0.5, clock=machine.clock, sleep=machine.sleep)
    pacer.begin()
    second(first(torch.ones(2, 4))).sum().backward()
    pacer.settle()
    assert pacer.report() == pytest.approx((0.5, 0.5, 0.040, 0.040))
    pacer.remove()


def test_other_models_and_copies_are_not_paced() -> None:
    machine = FakeMachine()
    model = nn.Sequential(nn.Linear(4, 4))
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    average = copy.deepcopy(model)
    pacer.begin()
    machine.compute(1.0)
    average(torch.ones(2, 4)).sum().backward()
    assert machine.sleeps == []
    pacer.remove()


def test_a_paced_model_can_be_copied_and_saved() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    keys = list(model.state_dict())
    pacer = pace(model, 0.5)
    assert type(copy.deepcopy(model)) is nn.Sequential
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded[0].weight, model[0].weight)
    assert list(model.state_dict()) == keys
    pacer.remove()


def test_a_compiled_model_is_paced_by_its_gradients() -> None:
    machine = FakeMachine()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    compiled = torch.compile(model, backend="eager")
    pacer.begin()
    loss = compiled(torch.ones(2, 4)).sum()
    machine.compute(1.0)
    loss.backward()
    pacer.settle()
    assert sum(machine.sleeps) == pytest.approx(1.0)
    pacer.remove()


def test_another_speed_holds_from_the_next_computing_on() -> None:
    machine = FakeMachine()
    pacer = Pacer(0.5, clock=machine.clock, sleep=machine.sleep)
    for speed in (0.5, 0.25, 1.0):
        pacer.set_speed(speed)
        pacer.begin()
        machine.compute(0.1)
        pacer.settle()
    assert machine.sleeps == pytest.approx([0.1, 0.3])
    assert pacer.report().asked == 1.0
    with pytest.raises(UsageError, match="not 2"):
        pacer.set_speed(2)


def test_nothing_is_slept_after_the_hooks_are_removed() -> None:
    machine = FakeMachine()
    model = BusyLinear(machine, 0.010)
    pacer = pace(model, 0.5, clock=machine.clock, sleep=machine.sleep)
    pacer.begin()
    pacer.remove()
    model(torch.ones(2, 4)).sum().backward()
    assert machine.sleeps == []


def test_the_clock_of_another_thread_is_not_mistaken_for_computing() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    pacer.begin()
    machine.compute(1.0)
    thread = threading.Thread(target=pacer.settle)
    thread.start()
    thread.join()
    assert pacer.report().cpu_s == 0


@pytest.mark.parametrize("speed", [0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_speed_that_is_no_fraction_is_refused(speed: float) -> None:
    with pytest.raises(UsageError, match="above 0 and at most 1"):
        pace(nn.Linear(1, 1), speed)


@pytest.mark.parametrize("speed", [0.5, 0.2])
def test_the_asked_speed_is_hit_within_ten_percent(speed: float) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)))
    pacer = pace(model, speed)
    batch = torch.randn(128, 256)
    # Enough computing for a late waking on a busy machine to be made up for.
    while pacer.report().cpu_s < 0.4:
        pacer.begin()
        model(batch).square().mean().backward()
        pacer.settle()
    pacer.remove()
    report = pacer.report()
    assert report.achieved == pytest.approx(speed, rel=0.1)
    assert report.achieved == pytest.approx(report.cpu_s / (report.cpu_s + report.slept_s))


def test_speeds_are_scaled_to_the_cores_and_keep_their_ratios() -> None:
    scaled, scale = scale_speeds([1, 0.5, 0.2, 0.1], 2)
    assert scale == pytest.approx(0.4)
    assert scaled == pytest.approx((0.4, 0.2, 0.08, 0.04))


def test_speeds_are_never_scaled_up() -> None:
    assert scale_speeds([0.5, 0.1], 16) == ((0.5, 0.1), 1.0)


def test_nothing_is_scaled_when_nothing_is_emulated() -> None:
    assert scale_speeds([1, 1, 1, 1], 2) == ((1, 1, 1, 1), 1.0)


def test_the_scale_is_told_in_words() -> None:
    assert describe_scale([1, 0.5], scale=0.4, cores=2) == (
        "emulating 2 nodes of speed 1, 0.5 on 2 cores: all scaled by 0.4, "
        "or the cores would be the limit"
    )
    assert "not scaled" in describe_scale([0.5, 0.1], scale=1.0, cores=16)
    assert describe_scale([1, 1], scale=1.0, cores=2) == ""


def test_scaling_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one core"):
        scale_speeds([], 2)


def test_a_noisy_machine_makes_no_noisy_node_of_the_slow_one() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.1)
    noise = [1.0, 1.3, 0.8, 0.9, 1.2, 0.75, 1.05, 1.0] * 8
    for factor in noise:
        pacer.begin(32)
        machine.compute(0.010 * factor)
        pacer.settle()
    late = machine.sleeps[16:]
    assert max(late) - min(late) < 0.02  # nine times the CPU time would differ by 0.05
    assert pacer.report().achieved == pytest.approx(0.1, rel=0.02)


def test_the_first_step_of_another_size_is_paid_as_it_is() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    for size, cpu_s in [(10, 0.010)] * 5 + [(12, 0.012), (40, 0.040)]:
        pacer.begin(size)
        machine.compute(cpu_s)
        pacer.settle()
    assert machine.sleeps[-2:] == pytest.approx([0.012, 0.040])


def test_a_step_that_costs_twice_the_usual_is_paid_as_it_is() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    for cpu_s in (0.010, 0.010, 0.020):
        pacer.begin(10)
        machine.compute(cpu_s)
        pacer.settle()
    assert machine.sleeps == pytest.approx([0.010, 0.010, 0.020])


def test_another_speed_holds_from_the_next_step_on() -> None:
    machine = FakeMachine()
    pacer = paced_on(machine, 0.5)
    for speed in (0.5, 0.5, 0.4):
        pacer.set_speed(speed)
        pacer.begin(10)
        machine.compute(0.010)
        pacer.settle()
    assert machine.sleeps == pytest.approx([0.010, 0.010, 0.015])

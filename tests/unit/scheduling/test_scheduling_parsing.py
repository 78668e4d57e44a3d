# SPDX-License-Identifier: Apache-2.0
"""Schemes, layouts and victims as people write them, and what they are told when it is wrong."""

from __future__ import annotations

import sys

import pytest

from gangline.scheduling import Choice, parse_scheme, parse_victims
from gangline.scheduling.schemes.named import SCHEMES
from gangline.spec.errors import UsageError
from gangline.spec.usercode import load_named


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("gss", "GSS"),
        (" awf-c ", "AWF-C"),
        ("daphne:tfss", "daphne:TFSS"),
        ("TAP(alpha=1.5)", "TAP(alpha=1.5)"),
        ("FSC( mean = 0.1, sigma=0.02 )", "FSC(mean=0.1,sigma=0.02)"),
        ("PLS()", "PLS"),
    ],
)
def test_a_scheme_is_read_and_said_alike(written, said):
    spec = parse_scheme(written)
    assert str(spec) == said
    assert str(parse_scheme(said)) == said


def test_which_schemes_learn_is_known():
    learning = {name for name in SCHEMES if parse_scheme(name).is_learning}
    assert learning == {
        "FSC",
        "FAC",
        "TAP",
        "BOLD",
        "AWF",
        "AWF-B",
        "AWF-C",
        "AWF-D",
        "AWF-E",
        "AF",
    }


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("GSSS", r"no scheme 'GSSS'; there are STATIC, .*AF, .*package\.module:Name; .*'GSS'"),
        ("AWFC", r"did you mean 'AWF-C'\?"),
        ("daphne:AWF", r"no scheme 'daphne:AWF'; there are SS, "),
        ("", "write a name"),
        ("TAP(alpha", "write a name"),
        ("TAP(beta=1)", "no parameter 'beta'; it takes alpha, mean"),
        ("GSS(x=1)", "it takes none"),
        ("daphne:PLS(swr=0.5)", "no parameter 'swr'"),
        ("TAP(alpha)", "write name=number"),
        ("TAP(alpha=-1)", "not below 0"),
        ("TAP(alpha=nan)", "not below 0"),
        ("FAC(sigma=1)", "give mean"),
        ("FAC(mean=0,sigma=0)", "above 0"),
        ("TAP(alpha=inf)", "must be finite"),
        ("GSS/FAC2", r"FAC2/GSS, are for the nodes of a job"),
        ("mymod.Mine", r"a class of your own is mymod:Mine"),
        ("PLS(swr=2)", "at most 1"),
        ("AWF-C(x=0.5)", "x is at least 1"),
        ("mine.rules:Own", "cannot be used here"),
    ],
)
def test_what_is_no_scheme_is_refused_with_what_there_is(written, said):
    with pytest.raises(UsageError, match=said):
        parse_scheme(written)


def test_other_names_are_refused_with_what_there_is():
    with pytest.raises(UsageError, match=r"no victim rule 'SEQQ'; .*did you mean 'SEQ'"):
        parse_victims("SEQQ")
    with pytest.raises(UsageError, match="cannot be used here"):
        parse_victims("mine:Rule")
    with pytest.raises(UsageError, match=r"no queue layout 'PERGPU'; .*did you mean 'PERCPU'"):
        Choice.parse("GSS", layout="PERGPU")
    with pytest.raises(UsageError, match="a grain of 0"):
        Choice.parse("GSS", grain=0)
    with pytest.raises(UsageError, match="AWF-C learns while the loop runs"):
        Choice.parse("AWF-C", layout="PERCPU", pre_partition=False)


def test_a_choice_says_what_it_is():
    assert str(Choice.parse("gss")) == "GSS, CENTRALIZED"
    own = Choice.parse("SS", grain=4, layout="percpu", victims="random", pre_partition=False)
    assert str(own) == "SS, grain 4, PERCPU, RANDOM, dealt beforehand"


OWN = """
class Halves:
    def __init__(self, loop, part=2.0):
        self.loop, self.part = loop, part
    def next_size(self, worker, remaining):
        return int(remaining / self.part)
    def finished(self, worker, size, seconds, overhead_s=0.0):
        pass

class Late(Halves):
    def next_size(self, worker, remaining):
        if remaining < 50 < self.loop.total:
            raise RuntimeError("late")
        return 3

class Steps(Halves):
    def next_size(self, worker, remaining):
        return self.part

class Mute(Halves):
    finished = None

class Fractions(Halves):
    def next_size(self, worker, remaining):
        return remaining / 2

class Raises(Halves):
    def next_size(self, worker, remaining):
        return 1 // 0

class NeedsMore:
    def __init__(self):
        pass

class Last:
    def __init__(self, seed):
        pass
    def pick(self, worker, own, near, far):
        return [*near, *far][-1]

class Own(Last):
    def pick(self, worker, own, near, far):
        return own
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_rules_tried.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "own_rules_tried"
    sys.modules.pop("own_rules_tried", None)


def test_a_scheme_of_ones_own_is_used(own):
    spec = parse_scheme(f"{own}:Halves(part=4)", load=load_named)
    assert spec.make(100, 2).next_size(0, 100) == 25
    assert spec.make(100, 2, grain=30).next_size(0, 100) == 30
    assert str(spec) == f"{own}:Halves(part=4)"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Mute", "has no method finished"),
        ("Fractions", r"next_size gave 18\.5, and must give a whole number"),
        ("Raises", "ZeroDivisionError on a loop of 37 items"),
        ("NeedsMore", "TypeError when it was made"),
        ("Halves(whole=1)", "TypeError when it was made"),
        ("Nobody", "has no Nobody"),
    ],
)
def test_a_scheme_of_ones_own_is_tried_when_it_is_loaded(own, name, said):
    with pytest.raises(UsageError, match=said):
        parse_scheme(f"{own}:{name}", load=load_named)


def test_a_scheme_of_ones_own_that_raises_later_is_told_with_its_name(own):
    scheme = parse_scheme(f"{own}:Late", load=load_named).make(60, 2)
    with pytest.raises(UsageError, match=r"Late: RuntimeError on a loop of 60 items: late"):
        scheme.next_size(0, 40)


def test_whole_parameters_of_ones_own_scheme_stay_whole(own):
    assert parse_scheme(f"{own}:Steps(part=7)", load=load_named).make(100, 2).next_size(0, 100) == 7


def test_a_victim_rule_of_ones_own_is_used_and_tried(own):
    rule = parse_victims(f"{own}:Last", load=load_named).make(0)
    assert rule.pick(0, 0, [1], [2, 5]) == 5
    with pytest.raises(UsageError, match=r"picked 0, and must pick one of the queues \[1, 2, 3\]"):
        parse_victims(f"{own}:Own", load=load_named)
    with pytest.raises(UsageError, match="TypeError when it was tried"):
        parse_victims(f"{own}:NeedsMore", load=load_named)


@pytest.mark.parametrize(
    ("text", "said"),
    [("no_such_module_here:X", "cannot import"), (":X", "write package"), ("a:", "write package")],
)
def test_what_cannot_be_imported_is_said(text, said):
    with pytest.raises(UsageError, match=said):
        load_named(text, what="scheme")

# SPDX-License-Identifier: Apache-2.0
"""The options of the control function."""

from __future__ import annotations

import pytest

from gangline.control import ControlOptions
from gangline.spec.errors import UsageError


def test_balanced_is_the_default():
    assert ControlOptions(global_batch=256).allocation == "balanced"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_batch": 0}, "global_batch must be at least 1, not 0"),
        ({"allocation": "eqal"}, "no allocation 'eqal'.*did you mean 'equal'"),
        ({"minimum": -1}, "minimum must be 0 or more samples, not -1"),
        ({"minimum_gain": 1.0}, "minimum_gain is a fraction .* not 1.0"),
        ({"recut_steps": 0}, "recut_steps must be at least 1, not 0"),
        ({"seed": -3}, "seed must be 0 or more, not -3"),
    ],
)
def test_the_message_names_the_value_when_an_option_cannot_be(change, message):
    with pytest.raises(UsageError, match=message):
        ControlOptions(**{"global_batch": 8, **change})

# SPDX-License-Identifier: Apache-2.0
"""The workload: what one training step asks of a cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from gangline.spec.errors import UsageError
from gangline.spec.pipelines import PlannedLayer

if TYPE_CHECKING:
    from pathlib import Path


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training job, as the cost model sees it."""

    global_batch: int
    """Samples per step, over all nodes."""
    gradient_bytes: float
    """What is exchanged per step: the bytes of all gradients."""
    unit_bytes: float = 4 << 20
    """The gradient travels in units of about this size."""
    overlap: float = 0.6
    """The fraction of a step's computing during which units travel already (the backward pass)."""
    compression: float = 1.0
    """Bytes on the links over bytes of gradients."""
    codec_s_per_byte: float = 0.0
    """Seconds to compress and to decompress one byte of gradients."""
    operation_ratio: float = 1.0
    """r_b: how many times as long a sample takes as in the profile."""
    other_s: float = 0.0
    """Seconds of a step that are neither computing nor exchanging: loading, the optimizer."""
    minimum_share: int = 1
    """The least share: 1, or more where BatchNorm needs it."""
    model_bytes: float | None = None
    """Memory for parameters, gradients and optimizer; None: four times the gradients."""
    sample_bytes: float = 0.0
    """Memory for the activations of one sample."""
    traffic_bytes_per_sample: float | None = None
    """Memory read and written to compute one sample; None: not known."""

    layers: tuple[PlannedLayer, ...] = ()
    """The layers of the model, where it may be cut: then pipelines are planned, too."""

    def __post_init__(self) -> None:
        parts = sum(layer.part for layer in self.layers)
        if self.layers and not math.isclose(parts, 1.0, abs_tol=1e-3):
            raise UsageError(
                f"the parts of the workload's layers must sum to 1, not to {parts:.4g}"
            )
        for field, is_good, expected in (
            ("global_batch", self.global_batch >= 1, "at least 1"),
            ("gradient_bytes", 0 <= self.gradient_bytes < math.inf, "finite and 0 or more"),
            ("unit_bytes", 0 < self.unit_bytes < math.inf, "finite and above 0"),
            ("overlap", 0 <= self.overlap <= 1, "between 0 and 1"),
            ("compression", 0 < self.compression < math.inf, "finite and above 0"),
            ("codec_s_per_byte", 0 <= self.codec_s_per_byte < math.inf, "finite and 0 or more"),
            ("operation_ratio", 0 < self.operation_ratio < math.inf, "finite and above 0"),
            ("other_s", 0 <= self.other_s < math.inf, "finite and 0 or more"),
            ("minimum_share", self.minimum_share >= 1, "at least 1"),
            ("model_bytes", 0 <= (self.model_bytes or 0) < math.inf, "finite and 0 or more"),
            ("sample_bytes", 0 <= self.sample_bytes < math.inf, "finite and 0 or more"),
            (
                "traffic_bytes_per_sample",
                0 <= (self.traffic_bytes_per_sample or 0) < math.inf,
                "finite and 0 or more",
            ),
        ):
            if not is_good:
                raise UsageError(
                    f"the workload's {field} must be {expected}, not {getattr(self, field)}"
                )

    @property
    def resident_bytes(self) -> float:
        """Memory that every node needs before the first sample."""
        return 4 * self.gradient_bytes if self.model_bytes is None else self.model_bytes

    @property
    def num_units(self) -> int:
        """In how many units the gradient travels."""
        return max(1, math.ceil(self.gradient_bytes / self.unit_bytes))

    @classmethod
    def from_file(cls, path: Path) -> Workload:
        """Reads a workload (TOML, or JSON by its ending); every mistake in it is named."""
        decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
        try:
            return decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise UsageError(f"cannot read the workload {path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"the workload {path} is not usable: {error}") from error

    @classmethod
    def from_text(cls, text: str) -> Workload:
        """Reads `global_batch=256,gradient_bytes=4e6,…`."""
        fields = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            try:
                number = float(value)
            except ValueError:
                raise UsageError(
                    f"the workload {text!r} has {part.strip()!r}, which is no field=number; write "
                    "global_batch=256,gradient_bytes=4e6, or name a file"
                ) from None
            fields[name.strip()] = int(number) if number.is_integer() else number
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise UsageError(f"the workload {text!r} is not usable: {error}") from error

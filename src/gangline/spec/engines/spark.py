# SPDX-License-Identifier: Apache-2.0
"""What can be asked of Spark."""

from __future__ import annotations

from gangline.spec.errors import UsageError
from gangline.spec.part import Part

_SECRET = ("secret", "password", "token", "credential", ".key")
_OURS = ("spark.master", "spark.app.name")


class SparkConfig(Part, frozen=True, kw_only=True):
    """The application whose tasks hold the workers."""

    master: str | None = None
    """Such as `spark://host:7077` or `local[4]`; None: as Spark itself is set up, else this machine."""
    conf: tuple[str, ...] = ()
    """Settings of the application, as `spark.name=value`."""
    strict: bool = False
    """One barrier stage: all tasks start together, and if one is lost, all are."""

    def __post_init__(self) -> None:
        for one in self.conf:
            name, equals, _ = one.partition("=")
            if not equals or not name.startswith("spark."):
                raise UsageError(
                    f"spark.conf {one.partition('=')[0]!r} is no setting of Spark; write for example "
                    "spark.executor.memory=2g"
                )
            if any(word in name.lower() for word in _SECRET):
                raise UsageError(
                    f"spark.conf {name} would show a secret to who lists processes, or opens Spark's "
                    "page: put it into spark-defaults.conf, which only you can read"
                )
            if name in _OURS:
                raise UsageError(
                    f"spark.conf {name}: say it by spark.master, or leave it to the run"
                )

    @property
    def settings(self) -> dict[str, str]:
        """The settings by name."""
        return {name: value for name, _, value in (one.partition("=") for one in self.conf)}

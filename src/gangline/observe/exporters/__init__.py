# SPDX-License-Identifier: Apache-2.0
"""What other tools are given of a run: one small module each, behind one protocol."""

from gangline.observe.exporters.exporter import Exporter as Exporter
from gangline.observe.exporters.exporter import Point as Point
from gangline.observe.exporters.exporter import Target as Target
from gangline.observe.exporters.feeding import ExportThread as ExportThread
from gangline.observe.exporters.tools import find_target as find_target

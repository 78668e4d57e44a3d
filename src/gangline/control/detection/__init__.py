# SPDX-License-Identifier: Apache-2.0
"""Who is slower than usual: a small protocol, and three detectors that follow it."""

from gangline.control.detection.named import DETECTORS as DETECTORS
from gangline.control.detection.named import detector_named as detector_named
from gangline.control.detection.paper import AverageDetector as AverageDetector
from gangline.control.detection.paper import WindowDetector as WindowDetector
from gangline.control.detection.protocol import Detector as Detector
from gangline.control.detection.protocol import Verdicts as Verdicts
from gangline.control.detection.protocol import check_detector as check_detector
from gangline.control.detection.robust import RobustDetector as RobustDetector

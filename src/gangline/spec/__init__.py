# SPDX-License-Identifier: Apache-2.0
"""The nouns that every other package speaks in: plain, validated, immutable values."""

from gangline.spec.cluster import Cluster as Cluster
from gangline.spec.cluster import Node as Node
from gangline.spec.errors import ExchangeAborted as ExchangeAborted
from gangline.spec.errors import ExchangeError as ExchangeError
from gangline.spec.errors import ExchangeMismatch as ExchangeMismatch
from gangline.spec.errors import GanglineError as GanglineError
from gangline.spec.errors import LaunchError as LaunchError
from gangline.spec.errors import LogError as LogError
from gangline.spec.errors import MainWorkerError as MainWorkerError
from gangline.spec.errors import MismatchError as MismatchError
from gangline.spec.errors import UnsupportedError as UnsupportedError
from gangline.spec.errors import UsageError as UsageError
from gangline.spec.view import View as View

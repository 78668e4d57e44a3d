# SPDX-License-Identifier: Apache-2.0
"""Sums and means over a group's members that send less than the tensors are long.

compressor = Compressor(Compression.parse("top-k(0.01)"))
compressor.mean(group, delta, weight=num_samples, key="model")
compressor.traffic.sent_bytes, compressor.traffic.dense_bytes
"""

from gangline.collectives.compression.compressor import Compressor as Compressor
from gangline.collectives.compression.compressor import Traffic as Traffic
from gangline.collectives.compression.trial import Trial as Trial
from gangline.collectives.compression.trial import Verdict as Verdict

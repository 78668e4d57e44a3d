# SPDX-License-Identifier: Apache-2.0
"""What a worker of `gangline.spark.fit` does, and what it leaves for the driver."""

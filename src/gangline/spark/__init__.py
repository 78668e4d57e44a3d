# SPDX-License-Identifier: Apache-2.0
"""Trains a PyTorch model on a Spark DataFrame, by workers in the slots of a Spark application.

from gangline.spark import fit

fitted = fit(df, Net(), loss=nn.CrossEntropyLoss(), features=["x"], label="y", epochs=3)
predictions = fitted.transform(df)
"""

from gangline.spark.fit import fit as fit
from gangline.spark.fitted import Fitted as Fitted

__all__ = ["Fitted", "fit"]

# SPDX-License-Identifier: Apache-2.0
"""The small models and data sets of the demo, the tests and the benchmarks.

    model = zoo.build_model("lenet5", image_size=28)
    train = zoo.digits("train", size=28)

Nothing is ever downloaded: data comes with a package, from files that are there, or from a seed.
"""

from gangline.zoo.arrays import digits as digits
from gangline.zoo.arrays import synthetic as synthetic
from gangline.zoo.idx_files import idx as idx
from gangline.zoo.image_files import image_folder as image_folder
from gangline.zoo.images import Images as Images
from gangline.zoo.language import CharGRU as CharGRU
from gangline.zoo.language import CharTransformer as CharTransformer
from gangline.zoo.registry import MODELS as MODELS
from gangline.zoo.registry import Builder as Builder
from gangline.zoo.registry import build_model as build_model

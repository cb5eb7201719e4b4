"""Names of array types, for annotations. Suffixes of variables name the axes: `rate_P` has one entry per prompt."""

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

"""`nemo-ada report`: a page that compares runs."""

import pandas as pd

# Where pyarrow is installed, pandas keeps texts in it, and it refuses names and answers that are no valid Unicode.
pd.options.mode.string_storage = "python"

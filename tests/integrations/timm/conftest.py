import warnings

import pytest

with warnings.catch_warnings():  # what other packages warn of when they are imported
    warnings.simplefilter("ignore")
    pytest.importorskip("timm")

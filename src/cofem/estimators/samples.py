"""Which samples the estimators take: dense or sparse matrices, in single or double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

#: What `validate_data` is told about X.
ACCEPTED: dict[str, Any] = {"accept_sparse": ("csr", "csc"), "dtype": (np.float64, np.float32)}


class SparseSamples:
    """An estimator whose X may be sparse."""

    def _check_new_data(self, X: Any) -> Any:
        return validate_data(self, X, reset=False, **ACCEPTED)

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn what is supported."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags

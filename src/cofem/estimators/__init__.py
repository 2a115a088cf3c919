"""scikit-learn regressors over `cofem.fit`: linear in the features, or in kernels at the training samples."""

from cofem.estimators.kernel import RVMRegressor
from cofem.estimators.linear import SBLRegressor

__all__ = ["RVMRegressor", "SBLRegressor"]

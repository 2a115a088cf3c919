"""scikit-learn estimators over `cofem.fit`: linear in the features, or in kernels at the training samples."""

from cofem.estimators.kernel import RVMClassifier, RVMRegressor
from cofem.estimators.linear import SBLClassifier, SBLRegressor

__all__ = ["RVMClassifier", "RVMRegressor", "SBLClassifier", "SBLRegressor"]

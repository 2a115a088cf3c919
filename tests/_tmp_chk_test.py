from sklearn.utils.estimator_checks import parametrize_with_checks

from cofem.estimators import RVMRegressor, SBLRegressor


@parametrize_with_checks([SBLRegressor(), RVMRegressor()])
def test_checks(estimator, check):
    check(estimator)

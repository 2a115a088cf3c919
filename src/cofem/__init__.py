"""Sparse Bayesian learning without covariance matrices."""

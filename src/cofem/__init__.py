"""Sparse Bayesian learning for very large dictionaries, without covariance matrices."""

# The public names are listed once, in `__init__.pyi`, and loaded on first use: `import cofem` stays quick.
import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Experiments: test problems with a known answer, and what is measured on them."""

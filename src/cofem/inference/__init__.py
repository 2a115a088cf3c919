"""Inference: one outer loop, and the algorithms that run on it."""

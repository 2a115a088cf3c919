"""The paper's experiments, figure by figure: `cofem reproduce`.

An experiment is one study with one row in `registry`. `page` makes figures and one HTML page from the
result files alone.
"""

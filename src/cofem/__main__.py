"""``python -m cofem`` is the `cofem` command."""

from cofem.cli import app

app(prog_name="cofem")

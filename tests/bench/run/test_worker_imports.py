"""What a worker imports: a GPU image that brings torch, triton and numpy needs few more."""

import subprocess
import sys

ABSENT = {"entmax", "matplotlib", "pandas", "plotly", "pydantic", "ray", "rich", "scipy", "sklearn", "typer"}


def test_a_worker_starts_without_statistics_tables_or_a_terminal() -> None:
    """scipy and pandas alone take two seconds of every child's start."""
    code = "import sys, attnbench.bench.run.worker; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    printed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    found = set(printed.split())
    assert {"torch", "numpy", "msgspec", "psutil", "attnbench"} <= found
    assert not found & ABSENT

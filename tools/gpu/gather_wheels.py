"""Wheels for a GPU machine without network: `python tools/gpu/gather_wheels.py --out wheels`, then carry the folder.

They are for an image that has torch, triton and numpy and nothing else of ours, for its version of Python and not for
this one. On the machine: `pip install --no-index --find-links wheels --no-deps wheels/*.whl`, then attnbench itself by
`pip install --no-deps --no-build-isolation -e .`
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRESENT = ("torch", "triton", "numpy")
"""Packages of the image; wheels of another version would break what it was tested with."""

WORKERS = ("msgspec", "psutil", "filelock", "setuptools", "ninja")
"""Those that a worker needs to make Records, which boards elsewhere are made from."""

MORE = ("nvidia-ml-py",)
"""Clocks, throttling and energy of the GPU."""


def wanted(workers_alone: bool) -> list[str]:
    """Requirements as pyproject.toml states them, without those of the image."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {requirement: _name(requirement) for requirement in stated}
    kept = [r for r, name in names.items() if name not in PRESENT and (name in WORKERS or not workers_alone)]
    return [*kept, *MORE]


def _name(requirement: str) -> str:
    for at, letter in enumerate(requirement):
        if not (letter.isalnum() or letter in "-_."):
            return requirement[:at].lower()
    return requirement.lower()


def platforms(architecture: str) -> list[str]:
    """Tags of wheels that a Linux of that architecture takes, the newest first."""
    tags = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
    return [word for tag in (*tags, "linux") for word in ("--platform", f"{tag}_{architecture}")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("wheels"), help="folder of the wheels")
    parser.add_argument("--python", default="3.12", help="version of Python of the image")
    parser.add_argument("--architecture", default="x86_64", help="of the machine, such as x86_64 or aarch64")
    parser.add_argument("--workers-alone", action="store_true", help="without what shows boards: scipy, pandas, typer")
    parser.add_argument("more", nargs="*", help="other packages, such as adasplash")
    arguments = parser.parse_args()
    command = [
        sys.executable, "-m", "pip", "download", "--dest", str(arguments.out), "--only-binary=:all:",
        "--implementation", "cp", "--python-version", arguments.python, *platforms(arguments.architecture),
    ]  # fmt: skip
    plain = [] if arguments.workers_alone else ["--constraint", str(ROOT / "constraints.txt")]
    code = subprocess.run([*command, *plain, *wanted(arguments.workers_alone)], check=False).returncode
    for package in arguments.more if code == 0 else ():
        # without its dependencies: a package that uses torch would bring another torch
        code = code or subprocess.run([*command, "--no-deps", package], check=False).returncode
    for wheel in sorted(arguments.out.glob("*.whl")):
        if wheel.name.split("-")[0] in PRESENT:
            wheel.unlink()
    found = sorted(arguments.out.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in found) / 2**20
    print(f"{len(found)} wheels for Python {arguments.python}, {size:.0f} MiB, in {arguments.out}")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""Built-in suites, as TOML."""

from pathlib import Path

FOLDER = Path(__file__).parent


def built_in() -> list[str]:
    """The names of the built-in suites, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))

"""Read Records into pandas, average them, and plot quality against cost where altair is installed.

python examples/read_records.py results --plot accuracy.html
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

import attnbench


def accuracies(folder: Path) -> pd.DataFrame:
    """Test accuracy in percent of each variant on each task and preset: mean, standard deviation, number of seeds."""
    table = attnbench.records(folder).to_pandas()
    tested = table[(table["name"] == "accuracy") & (table["split"] == "test") & (table["lane"] == "train")]
    # a cell that was measured again has several Records; the newest counts, as on a board
    newest = tested.sort_values("started").drop_duplicates("key", keep="last")
    found = newest.groupby(["task", "preset", "variant"])["value"].agg(["mean", "std", "count"]).reset_index()
    return found.assign(mean=100 * found["mean"], std=100 * found["std"])


def plot(found: pd.DataFrame, path: Path) -> None:
    """One dot for each variant, a panel for each task, as an HTML page."""
    import altair

    dots = altair.Chart(found).mark_circle().encode(x=altair.X("mean", scale=altair.Scale(zero=False)), y="variant")
    dots.facet("task", columns=2).resolve_scale(x="independent").save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    found = accuracies(arguments.folder)
    print(found.round(1).to_string(index=False))
    if arguments.plot and find_spec("altair"):
        plot(found, arguments.plot)
        print(f"plotted to {arguments.plot}")
    elif arguments.plot:
        print("no plot: pip install 'attnbench[dashboard]' brings altair")


if __name__ == "__main__":
    main()

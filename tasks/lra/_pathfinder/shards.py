"""Shards: a Pathfinder set generated in parallel, some hundred images a file, so that a killed build loses little."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from ...contract import DataPlace, Split
from ...data.generated import regenerated
from ...data.prepared import PreparedData, prepared_folder, write_errors
from .images import SEED, VERSION, Scene, draw
from .paddles import Bytes

BUILDER = 1
IMAGES = {32: 1_000, 64: 400, 128: 100}
"""Images of a shard by size: some seconds of work."""

SHARES = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}
"""Split → last digits of the numbers of its images; splits of a larger set contain those of a smaller set."""

OFFICIAL_EXAMPLES = 200_000


def generated(scene: Scene, examples: int, place: DataPlace, task: str) -> PreparedData:
    """Images 0 to examples - 1 of a scene, prepared once. A build goes on where a killed one stopped."""
    identity = generator_identity(scene, examples)
    folder = scratch(place, task, identity)
    origin = f"Pathfinder generator {VERSION}, seed {SEED}, {scene.size}-{scene.level}, {examples:,} images"

    def generate() -> dict[str, Split]:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            make(scene, examples, folder, place)
            return assembled(scene, examples, folder)

    notes = [f"{examples:,} images instead of {OFFICIAL_EXAMPLES:,}"] if examples != OFFICIAL_EXAMPLES else []
    prepared = regenerated(place, task, identity, origin=origin, generate=generate, notes=notes)
    shutil.rmtree(folder, ignore_errors=True)
    return prepared


def scratch(place: DataPlace, task: str, identity: Mapping[str, object]) -> Path:
    """The folder for intermediate files of prepared data of this identity."""
    return place.cache / "shards" / prepared_folder(place, task, identity).name


def generator_identity(scene: Scene, examples: int) -> dict[str, object]:
    """The identity of the prepared data of `generated`."""
    return {"generator": VERSION, "builder": BUILDER, "scene": repr(scene), "examples": examples}


def make(scene: Scene, examples: int, folder: Path, place: DataPlace, workers: int | None = None) -> None:
    """Make every missing shard, with one process per core that this one may use."""
    step = IMAGES[scene.size]
    wanted = [(first, min(step, examples - first)) for first in range(0, examples, step)]
    missing = [(first, count) for first, count in wanted if not _whole(folder, scene, first, count)]
    what, done = f"generating Pathfinder {scene.size}-{scene.level}", examples - sum(count for _, count in missing)
    place.progress(what, done, examples)
    workers = min(workers or cores(), len(missing))
    if workers <= 1:
        for first, count in missing:
            make_shard(scene, first, count, folder)
            done += count
            place.progress(what, done, examples)
        return
    # a forked child could inherit a lock that another thread holds
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent) as pool:
        futures = {pool.submit(make_shard, scene, first, count, folder): count for first, count in missing}
        try:
            for future in as_completed(futures):
                future.result()
                done += futures[future]
                place.progress(what, done, examples)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make_shard(scene: Scene, first: int, count: int, folder: Path) -> None:
    """Write one file of rows, each with an image's pixels and then its label."""
    drawing = draw(scene, first, count)
    rows = np.concatenate([drawing.images.reshape(count, -1), drawing.labels[:, None].astype(np.uint8)], axis=1)
    # renamed when whole, so a file with the final name is complete
    partial = folder / f".{first}-{os.getpid()}.npy"
    np.save(partial, rows, allow_pickle=False)
    partial.replace(_path(folder, first, count))


def assembled(scene: Scene, examples: int, folder: Path) -> dict[str, Split]:
    """The splits of a complete set of shards. Their tokens are memory maps beside the shards."""
    pixels = scene.size**2
    numbers = np.arange(examples)
    tokens, labels, filled = {}, {}, dict.fromkeys(SHARES, 0)
    for name, digits in SHARES.items():
        size = int(np.isin(numbers % 10, list(digits)).sum())
        # all of Path-X is 6.6 GB, so the tokens go to the disk
        tokens[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint16, (size, pixels))
        labels[name] = np.empty(size, dtype=np.int64)
    for first in range(0, examples, IMAGES[scene.size]):
        count = min(IMAGES[scene.size], examples - first)
        rows: Bytes = np.load(_path(folder, first, count), mmap_mode="r")
        for name, digits in SHARES.items():
            part = rows[np.isin((first + np.arange(count)) % 10, list(digits))]
            low, high = filled[name], filled[name] + len(part)
            # black is a pixel like any other and must not look like padding
            tokens[name][low:high] = part[:, :-1].astype(np.uint16) + 1
            labels[name][low:high] = part[:, -1]
            filled[name] = high
    return {name: Split.of_rows(tokens[name], labels[name]) for name in SHARES}


def _path(folder: Path, first: int, count: int) -> Path:
    return folder / f"{first}-{count}.npy"


def _whole(folder: Path, scene: Scene, first: int, count: int) -> bool:
    try:
        return bool(np.load(_path(folder, first, count), mmap_mode="r").shape == (count, scene.size**2 + 1))
    except (OSError, ValueError):
        return False


def _end_with_parent() -> None:
    # the parent handles interrupts; when it is killed, its workers must end too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

"""The machine that a Record was made on: hardware and the software that a speed depends on; no name, no address."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from ... import __version__
from ..core.errors import DeviceError, SelectionError
from ..core.harness import NAME, harness_name
from ..core.record import Machine
from .devices import devices


def choose_device(wanted: str | None) -> torch.device:
    """The device to run on: as asked, else the GPU where there is one.

    Raises SelectionError for a word that names no device, DeviceError for a device that this machine lacks.
    """
    if wanted in (None, "auto"):
        # counting asks the driver and makes no context, which would take memory of a GPU that a child is to have alone
        return torch.device("cuda" if torch.cuda.device_count() else "cpu")
    if wanted in devices():
        raise SelectionError(f"{wanted!r} names a card for `plan` and `choose`; run on one of them with --device cuda")
    try:
        device = torch.device(str(wanted))
    except RuntimeError:
        raise SelectionError(f"expected a device such as cpu, cuda or cuda:1, got {wanted!r}") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise DeviceError(
                f"{wanted!r} was asked for, but PyTorch {torch.__version__} sees {count} CUDA devices here; "
                "use --device cpu, or install a CUDA build of PyTorch (see the README)"
            )
    elif device.type != "cpu" or device.index:
        raise SelectionError(f"expected a device such as cpu, cuda or cuda:1, got {wanted!r}")
    return device


def describe(device: torch.device) -> Machine:
    """The machine as it stands; `id` is a hash of all that decides a speed but the threads, which each run chooses."""
    accelerators: tuple[str, ...] = ()
    driver = ""
    if device.type == "cuda":
        accelerators = (torch.cuda.get_device_name(device),)
        driver = torch.version.cuda or ""
    # of the code that runs: what pip has noted of a checkout may be of the day when it was installed
    versions = {"python": platform.python_version(), "attnbench": __version__, NAME: harness_name()}
    if device.type == "cuda" and (cudnn := torch.backends.cudnn.version()):  # type: ignore[no-untyped-call]
        # one of the backends of softmax, the reference, and its speed moves with the version
        versions["cudnn"] = str(cudnn)
    # Only what decides a speed or explains a failure: Records are published, and a full list would name private
    # packages.
    for package in ("torch", "triton", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    machine = Machine(
        id="",
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=psutil.virtual_memory().total,
        accelerators=accelerators,
        driver=driver,
        versions=versions,
    )
    return replace(machine, id=machine.described_id)


def device_name(device: torch.device) -> str:
    """`cpu`, or the GPU with its UUID, which stays the same whichever GPUs a process sees."""
    if device.type != "cuda":
        return str(device)
    found = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"cuda GPU-{found}" if found else str(device)


def available_bytes() -> int:
    """Memory that a new allocation can have now without swapping."""
    return int(psutil.virtual_memory().available)


def _processor() -> str:
    """Model name with the widest vector extension, since two hosts of one name may differ in it.

    Read from the kernel, since psutil knows neither.
    """
    name, flags = platform.processor() or platform.machine(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return name
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == "model name":
            name = value.strip()
        elif field.strip() == "flags":
            flags = value
            break
    widest = next((f for f in ("amx_tile", "avx512f", "avx2", "avx") if f in flags.split()), "")
    return f"{name} ({widest})" if widest else name

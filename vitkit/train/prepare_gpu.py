"""Prepare a GPU in threads while imports go on and data are opened, so that the first step does not wait for it.

Prepared are the driver's context, the libraries of products and of attention, and the hash of Triton's own files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

import torch

from vitkit.kernels.attention import sdpa
from vitkit.kernels.dispatch import hash_compiler

_hashed: Future[None] | None = None


def prepare_gpu(device: torch.device) -> None:
    """Start the threads, once in a process; on another device there is nothing to prepare."""
    global _hashed
    if device.type != "cuda" or _hashed is not None:
        return
    _hashed = _in_thread(hash_compiler)
    _in_thread(lambda: _first_operations(device))


def wait_for_hash() -> None:
    """Wait until Triton's files are hashed, if a thread is at it: other threads would hash them, too."""
    if _hashed is not None:
        _hashed.result()


def _in_thread(work: Callable[[], None]) -> Future[None]:
    """Do the work in a thread that a command which ends at once, for a wrong path, does not wait for."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except Exception as error:  # what needs it will say so
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=run, name="vitkit-gpu", daemon=True).start()
    return done


def _first_operations(device: torch.device) -> None:
    """Compute a product and an attention, of which each loads a library of hundreds of megabytes."""
    ones = torch.ones(1, 1, 64, 64, dtype=torch.bfloat16, device=device)
    torch.mm(ones[0, 0], ones[0, 0])
    sdpa(ones, ones, ones)

"""Decompression bombs on the command line: CPU seconds and memory until each is refused.

    python benchmarks/bombs.py [--only NAME …] [--json]

Each bomb is a file of a few kilobytes or megabytes that states, or decompresses to, gigabytes. Each command runs in a
process of its own; its CPU seconds and its peak memory are those beyond the same command with harmless files. Memory
is limited to --gigabytes, so that a version of vitkit without limits fails and the machine survives.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

GIGABYTE = 2**30
SMALL_FIT = ["--model", "mu/4", "--weights", "none", "--image", "16", "--steps", "1", "--device", "cpu"]
_ZEROS = 2**24  # bytes of zeros that are compressed once, and repeated


@dataclass(frozen=True)
class Result:
    bomb: str
    command: str
    bytes_on_disk: int
    seconds: float  # of CPU time, beyond the same command with harmless files
    megabytes: float  # likewise
    exit_code: int
    message: str


def deflated_zeros(size: int, before: bytes = b"") -> bytes:
    """Return raw deflate data of `before` and then `size` zeros, a multiple of 16 MiB; 1,030 times smaller."""
    first, repeated, last = (zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS) for _ in range(3))
    start = first.compress(before) + first.flush(zlib.Z_FULL_FLUSH)
    zeros = repeated.compress(bytes(_ZEROS)) + repeated.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before itself
    return start + zeros * (size // _ZEROS) + last.flush()


def zip_archive(members: dict[str, tuple[bytes, int]]) -> bytes:
    """Return a zip file of members by name: their raw deflate data, and the size that the headers state.

    The checksum of gigabytes takes seconds, and nobody should come as far as comparing it.
    """
    body, directory = b"", b""
    for name, (packed, size) in members.items():
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), size, len(name), 0)
        directory += b"PK\1\2\x14\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        body += b"PK\3\4" + fields + name.encode() + packed
    counts = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + b"PK\5\6" + counts


def zip_bomb(stated: int | None = None) -> bytes:
    """Return a zip file with one image of 4 GB; a lie about its size is stated."""
    size = 4 * GIGABYTE - _ZEROS  # the largest without ZIP64
    return zip_archive({"a/bomb.bmp": (deflated_zeros(size), size if stated is None else stated)})


def npz_bomb(name: str) -> bytes:
    """Return a .npz file with one array of 4 GB."""
    images = 4 * GIGABYTE // _ZEROS - 1
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (images, 4096, 4096)}
    )
    start = header.getvalue()
    return zip_archive({f"{name}.npy": (deflated_zeros(images * _ZEROS, start), images * _ZEROS + len(start))})


def npy_header_bomb() -> bytes:
    """Return a .npz file whose array has a header of 2 GB."""
    size = 2 * GIGABYTE
    return zip_archive({"images.npy": (deflated_zeros(size, b"\x93NUMPY\2\0" + struct.pack("<I", size)), size + 12)})


def tiff(packed: bytes, *, bands: int, compression: int, side: int = 8) -> bytes:
    """Return a TIFF of side x side pixels with one strip of these compressed bytes."""
    photometric = 2 if bands == 3 else 1
    tags = [(256, side), (257, side), (258, 8), (259, compression), (262, photometric), (273, 8), (277, bands)]
    tags += [(278, side), (279, len(packed)), (284, 1), (339, 1)]
    if bands == 3:
        tags[2] = (258, None)
    end = 8 + len(packed)
    directory = struct.pack("<H", len(tags))
    for tag, value in tags:
        directory += struct.pack("<HHII", tag, 3, 3, end) if value is None else struct.pack("<HHII", tag, 4, 1, value)
    directory += bytes(4)
    depths = struct.pack("<HHHH", 8, 8, 8, 0)
    return b"II*\0" + struct.pack("<I", end + len(depths)) + packed + depths + directory


def lzma_tiff_bomb(streams: int = 50) -> bytes:
    """Return a TIFF of 8 x 8 px and five bands, whose strip holds 64 MiB of zeros, `streams` times."""
    return tiff(lzma.compress(bytes(2**26), preset=1) * streams, bands=5, compression=34925)


def jpeg2000_bomb(side: int = 14_000, colour: int = 0) -> bytes:
    """Return a JPEG 2000 codestream of 8 x 8 px whose header states side x side."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(file, "JPEG2000", no_jp2=True)
    content = bytearray(file.getvalue())
    sizes = content.index(b"\xff\x51") + 6
    content[sizes : sizes + 8] = struct.pack(">II", side, side)
    content[sizes + 16 : sizes + 24] = struct.pack(">II", side, side)  # of the only tile
    return bytes(content)


def png(colour: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(file, "PNG")
    return file.getvalue()


def sparse_file(path: Path) -> None:
    """Write a file of 12 GB that takes no space on disk."""
    with path.open("wb") as file:
        file.write(b"\xff\xd8\xff\xe0")
        file.truncate(12 * 10**9)


def image_folder(folder: Path, bombs: dict[str, bytes | Callable[[Path], None]]) -> Path:
    """Write two classes of harmless images, and the bombs among them."""
    for number in range(20):
        path = folder / f"{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(10 * number))
    for name, content in bombs.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            content(folder / name)
    return folder


def make_bombs(folder: Path) -> dict[str, Path]:
    """Write every bomb; return the path of the file or folder of images by name."""
    bombs = {"zip": zip_bomb(), "zip that lies": zip_bomb(stated=10_000)}
    arrays = {"npz": npz_bomb("images"), "npz of weights": npz_bomb("kernel"), "npy header": npy_header_bomb()}
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for (name, content), suffix in zip((bombs | arrays).items(), (".zip",) * 2 + (".npz",) * 3, strict=True):
        paths[name] = folder / (name.replace(" ", "_") + suffix)
        paths[name].write_bytes(content)
    images: dict[str, dict[str, bytes | Callable[[Path], None]]] = {
        "LZMA TIFF": {"a/bomb.tif": lzma_tiff_bomb()},
        "JPEG 2000": {"a/bomb.j2k": jpeg2000_bomb(), "b/bomb.j2k": jpeg2000_bomb(colour=200)},
        "sparse file": {"a/bomb.jpg": sparse_file},
    }
    return paths | {name: image_folder(folder / name.replace(" ", "_"), files) for name, files in images.items()}


def commands(bombs: dict[str, Path], folder: Path) -> list[tuple[str, str, list[str]]]:
    """Return (bomb, verb, arguments) of each command."""
    predict_files = {name: next(path.glob("a/bomb.*")) for name, path in bombs.items() if path.is_dir()}
    weights = bombs["npz of weights"]
    result = [(name, "check", ["check", str(path)]) for name, path in bombs.items() if path != weights]
    result += [(name, "predict", ["predict", "ti16", str(path)]) for name, path in predict_files.items()]
    result += [("sparse file", "fit", ["fit", str(bombs["sparse file"]), *SMALL_FIT, "--out", str(folder / "run")])]
    return [*result, ("npz of weights", "predict", ["predict", str(weights), str(predict_files["LZMA TIFF"])])]


def measure(arguments: list[str], gigabytes: float) -> tuple[float, float, int, str]:
    """Run the command; return its CPU seconds, peak megabytes, exit code and last line."""
    limit = int(gigabytes * GIGABYTE)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory() as cache:
        process = subprocess.Popen(
            [sys.executable, "-m", "vitkit", *arguments],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            cwd=cache,  # where check leaves its contact sheet
            env={**os.environ, "XDG_CACHE_HOME": cache, "COLUMNS": "200"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for here
        seconds = usage.ru_utime + usage.ru_stime
        output.seek(0)
        text = output.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if re.search(r"bomb\.|\.npz|Error", line)]
    return seconds, usage.ru_maxrss / 1024, process.returncode, (lines or [text])[-1].strip()[:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="only these bombs")
    parser.add_argument("--gigabytes", type=float, default=12, help="of memory that a command may have")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        harmless = image_folder(folder / "harmless", {})
        bombs = make_bombs(folder / "bombs")
        idle: dict[str, tuple[float, float]] = {}
        for name, verb, arguments in commands(bombs, folder):
            if options.only and name not in options.only:
                continue
            if verb not in idle:
                same = {
                    "check": ["check", str(harmless)],
                    "predict": ["predict", "ti16", str(harmless / "a")],
                    "fit": ["fit", str(harmless), *SMALL_FIT, "--out", str(folder / "idle")],
                }
                idle[verb] = measure(same[verb], options.gigabytes)[:2]
            seconds, megabytes, code, message = measure(arguments, options.gigabytes)
            size = sum(path.stat().st_blocks * 512 for path in [bombs[name], *bombs[name].glob("*/bomb.*")])
            more = megabytes - idle[verb][1]
            message = message.replace(str(folder / "bombs") + "/", "")
            results.append(Result(name, verb, size, seconds - idle[verb][0], more, code, message))
            if not options.json:
                print(f"{name:<15} {verb:<8} {seconds - idle[verb][0]:6.1f} s {more:8.0f} MB  exit {code}  {message}")
    if options.json:
        print(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()

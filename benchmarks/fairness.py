"""Fairness of the server: how long an ordinary client waits while others send images that are slow to decode.

    python benchmarks/fairness.py [--run RUN] [--seconds 6] [--attackers 1 2 8] [--against CHECKOUT] [--json]

Each row is one attack by some clients, each of which repeats its request as soon as it is answered, while an ordinary
client asks with one photo, again and again. The attackers have addresses of their own (127.0.0.2 and on), or with
"same" that of the ordinary client, as behind a proxy. --against measures an older checkout of vitkit as well, in turns
with this one. The exit code is 1 if, for this checkout, the ordinary client's median reaches a second, it gets a server
error, or the memory of all the server's processes exceeds its bound. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import multiprocessing
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from serve import save_random_model

ROOT = Path(__file__).resolve().parent.parent
MEDIAN_LIMIT = 1.0  # seconds
# the server at rest, bodies and their copies, a large image in each decode process that takes them, a small one in the
# other: 0.6 + 2 x 0.3 + (1 + 0.3) x 50 megapixels x 22 bytes
MEMORY_LIMIT_MB = 2600
ORDINARY = "127.0.0.1"


def one_colour_webp(side: int = 7000) -> bytes:
    """Return a lossless WebP of one colour, with 600 bytes after its end: in fewer, the decoder refuses such a size."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (10, 200, 30)).save(file, "WEBP", lossless=True, quality=0, method=0)
    return file.getvalue() + bytes(600)


def deep_ppm(megabytes: int = 30) -> bytes:
    """Return a PPM whose largest value is not 255, which Pillow decodes in Python."""
    side = int((megabytes * 1e6 / 3) ** 0.5)
    return b"P6 %d %d 254\n" % (side, side) + np.random.default_rng(0).bytes(side * side * 3)


def fill_jpeg(megabytes: int = 31) -> bytes:
    return b"\xff\xd8" + b"\xff" * (megabytes * 1_000_000)


def run_length_bmp(megabytes: int = 31) -> bytes:
    """Return a BMP with run-length encoding whose runs are all empty."""
    data, palette = b"\0\2\0\0" * (megabytes * 250_000), bytes(1024)
    header = struct.pack("<IiiHHIIiiII", 40, 2000, 2000, 1, 8, 1, len(data), 2835, 2835, 0, 0)
    start = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + header + palette + data


def gap_pgm() -> bytes:
    """Return a PGM of 43 bytes whose header is one long gap, for a pattern that tries every way to divide it."""
    return b"P5" + b" " * 40 + b"x"


def tagged_tiff(tags: int = 50_000) -> bytes:
    """Return a TIFF that says its width so many times."""
    return b"II*\0" + struct.pack("<IH", 8, tags) + struct.pack("<HHII", 256, 4, 1, 8) * tags


def understated_gif(side: int = 7000) -> bytes:
    """Return a GIF whose header states a canvas of one pixel, and whose first frame has 49 megapixels."""
    file = io.BytesIO()
    Image.new("P", (side, side)).save(file, "GIF")
    content = bytearray(file.getvalue())
    content[6:10] = struct.pack("<HH", 1, 1)
    return bytes(content)


def photo() -> bytes:
    """Return a JPEG of an ordinary size and detail: about 2 megapixels and 500 kB."""
    rng = np.random.default_rng(1)
    blocks = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((1600, 1200))
    noise = rng.normal(0, 6, (1200, 1600, 3))
    file = io.BytesIO()
    Image.fromarray(np.clip(np.asarray(blocks) + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def attacks() -> dict[str, bytes]:
    """Return the requests, complete with their heads."""
    webp = one_colour_webp()
    return {
        "64 WebP in a request": json_request([webp] * 64),
        "one WebP": image_request(webp),
        "30-MB PPM": image_request(deep_ppm()),
        "31 MB of FF": image_request(fill_jpeg()),
        "run-length BMP": image_request(run_length_bmp()),
        "43-byte PGM": image_request(gap_pgm()),
        "38 TIFF of many tags": json_request([tagged_tiff()] * 38),
        "understated GIF": image_request(understated_gif()),
    }


def head(kind: str, length: int) -> bytes:
    lines = ["POST /v1/predict HTTP/1.1", "host: localhost", f"content-type: {kind}", f"content-length: {length}"]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode()


def image_request(content: bytes) -> bytes:
    return head("application/octet-stream", len(content)) + content


def json_request(images: list[bytes]) -> bytes:
    body = json.dumps({"images": [base64.b64encode(content).decode() for content in images]}).encode()
    return head("application/json", len(body)) + body


class Server:
    """`vitkit serve` of a checkout, on the CPU."""

    def __init__(self, checkout: Path, run: str):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vitkit", "serve", f"model={run}", "--port", "0", "--json", "--device", "cpu"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")])},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the server of {checkout} did not start")
        self.port = int(json.loads(line)["port"])

    def resident_mb(self) -> float:
        """Return the memory of all its processes; what they share counts once."""
        return sum(proportional_set_size(pid) for pid in process_tree(self.process.pid)) / 1e6

    def stop(self) -> None:
        self.process.kill()  # it would first answer what the attackers have left behind
        self.process.communicate()


def process_tree(root: int) -> Iterator[int]:
    yield root
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{root}/task"):
            for child in Path(f"/proc/{root}/task/{thread}/children").read_text().split():
                yield from process_tree(int(child))


def proportional_set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


@dataclass
class Row:
    server: str
    attack: str
    attackers: int
    addresses: str
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    attack_statuses: Counter[str] = field(default_factory=Counter)
    peak_mb: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.latencies) if self.latencies else float("inf")

    @property
    def failed(self) -> list[str]:
        errors = [status for status in self.statuses if status.startswith("5") or status == "lost"]
        return [
            *([f"median {self.median:.2f} s"] if self.median >= MEDIAN_LIMIT else []),
            *([f"statuses {', '.join(errors)}"] if errors else []),
            *([f"{self.peak_mb:.0f} MB"] if self.peak_mb > MEMORY_LIMIT_MB else []),
        ]

    def record(self) -> dict[str, Any]:
        known = ("server", "attack", "attackers", "addresses")
        return {
            **{name: value for name, value in asdict(self).items() if name in known},
            "requests": len(self.latencies),
            "median": round(self.median, 3),
            "p95": round(float(np.quantile(self.latencies, 0.95)), 3) if self.latencies else None,
            "worst": round(max(self.latencies), 3) if self.latencies else None,
            "statuses": dict(self.statuses),
            "attack_statuses": dict(self.attack_statuses),
            "peak_mb": round(self.peak_mb),
        }


async def exchange(port: int, address: str, request: bytes) -> str:
    """Send a request over a connection of its own, and return the status of the response."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    except OSError:
        return "lost"
    try:
        writer.write(request)
        status = (await reader.readline()).split()[1].decode()
        await reader.read()
        return status
    except (OSError, IndexError):
        return "lost"
    finally:
        writer.close()


async def attack(port: int, addresses: list[str], request: bytes, statuses: Counter[str]) -> None:
    async def repeat(address: str) -> None:
        while True:
            statuses[await exchange(port, address, request)] += 1
            await asyncio.sleep(0.01)  # what an attacker may spend on a refusal

    await asyncio.gather(*map(repeat, addresses))


def attack_until_told(port: int, addresses: list[str], request: bytes, connection: Connection) -> None:
    """Attack until something arrives, and send back how the server answered; the process ends with its connections."""
    statuses: Counter[str] = Counter()

    async def main() -> None:
        attacking = asyncio.create_task(attack(port, addresses, request, statuses))
        while not connection.poll():
            await asyncio.sleep(0.05)
        connection.send(statuses)
        attacking.cancel()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
    os._exit(0)


@contextlib.contextmanager
def attackers(server: Server, row: Row, request: bytes) -> Iterator[None]:
    """Run the attackers in a process of their own: their work must not delay the ordinary client's clock."""
    addresses = [ORDINARY if row.addresses == "same" else f"127.0.0.{2 + number}" for number in range(row.attackers)]
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=attack_until_told, args=(server.port, addresses, request, theirs), daemon=True
    )
    process.start()
    try:
        yield
        ours.send("stop")
        row.attack_statuses.update(ours.recv())
    finally:
        process.kill()
        process.join()


async def ask(port: int, request: bytes, row: Row, until: float) -> None:
    """Ask again and again until the time is over, but at least once."""
    while not row.latencies or time.monotonic() < until:
        started = time.monotonic()
        row.statuses[await exchange(port, ORDINARY, request)] += 1
        row.latencies.append(time.monotonic() - started)
        await asyncio.sleep(0.05)


async def watch_memory(server: Server, row: Row) -> None:
    while True:
        row.peak_mb = max(row.peak_mb, await asyncio.to_thread(server.resident_mb))
        await asyncio.sleep(0.2)


async def measure(server: Server, row: Row, ordinary: bytes, seconds: float) -> None:
    watching = asyncio.create_task(watch_memory(server, row))
    await asyncio.sleep(1)  # until the attack is under way
    await ask(server.port, ordinary, row, time.monotonic() + seconds)
    watching.cancel()


def print_row(row: Row) -> None:
    record = row.record()
    times = " ".join(
        f"{value:7.2f}" if value is not None else "      -" for value in (row.median, record["p95"], record["worst"])
    )
    statuses, attackers = (
        ", ".join(f"{status} x {count}" for status, count in sorted(counts.items())) or "-"
        for counts in (row.statuses, row.attack_statuses)
    )
    verdict = f"  ! {'; '.join(row.failed)}" if row.failed else ""
    print(
        f"{row.server:<7} {row.attack:<22} {row.attackers:>2} {row.addresses:<6}{times}  {statuses:<22} "
        f"{attackers:<30} {row.peak_mb:6.0f}{verdict}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="a run folder or weights; default: a model with random weights")
    parser.add_argument("--model", default="Ti/16", help="name of the model with random weights")
    parser.add_argument("--seconds", type=float, default=6, help="for each row")
    parser.add_argument("--attackers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--attacks", nargs="+", help="the beginnings of their names; default: all")
    parser.add_argument("--against", type=Path, help="another checkout of vitkit, to compare with")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each row")
    options = parser.parse_args()
    ordinary, rows = image_request(photo()), []
    hostile = {
        name: request
        for name, request in attacks().items()
        if not options.attacks or name.startswith(tuple(options.attacks))
    }
    checkouts = {"now": ROOT, **({"before": options.against.resolve()} if options.against else {})}
    if not options.json:
        print(
            f"{'server':<7} {'attack':<22} {'by':>2} {'from':<6}{'median':>7} {'p95':>7} {'worst':>7}  "
            f"{'ordinary client':<22} {'attackers':<30} {'MB':>6}"
        )
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or save_random_model(Path(folder), options.model)
        cases = [(name, number, "own") for name in hostile for number in options.attackers]
        cases += [(name, max(options.attackers), "same") for name in hostile]
        for name, number, addresses in [("none", 0, "own"), *cases]:
            for checkout, path in checkouts.items():
                server = Server(path, run)  # a new one: what an attack has left behind must not count for the next
                row = Row(checkout, name, number, addresses)
                try:
                    with attackers(server, row, hostile.get(name, b"")):
                        asyncio.run(measure(server, row, ordinary, options.seconds))
                finally:
                    server.stop()
                rows.append(row)
                print(json.dumps(row.record()), flush=True) if options.json else print_row(row)
    failed = [row for row in rows if row.server == "now" and row.failed]
    if not options.json:
        print(f"{len(failed)} of {sum(row.server == 'now' for row in rows)} rows of this checkout failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

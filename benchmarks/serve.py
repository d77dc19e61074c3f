"""Load test of a server: 64 clients, each with one request at a time; with micro-batching and without.

    python benchmarks/serve.py [--run RUN] [--images FOLDER] [--seconds 60] [--clients 64] [--json]

Two servers of the same model run side by side, one with micro-batches of up to --batch images and one without. They get
their load in turns of a few seconds, so that whatever else the machine does affects both. Every prediction is compared
with that of Classifier for the same image alone. Without --run, the model is Ti/16 at 224 px with random weights;
without --images, the images are synthetic.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitkit

TOLERANCE = 8 * float(np.finfo(np.float32).eps) * 10_000**0.5  # sums of up to 10,000 products in another order
WARM_UP = 0.25  # of the time; memory must stay constant after it


@dataclass
class LoadTotals:
    answered: int = 0
    rejected: int = 0  # with 503, and repeated
    wrong: int = 0
    failed: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0


class ServerProcess:
    def __init__(self, run: str, *options: str, device: str = "cpu"):
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "vitkit",
                "serve",
                f"model={run}",
                "--port",
                "0",
                "--json",
                "--device",
                device,
                *options,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(120)


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, Any]:
    """Send plain HTTP over one connection, so that the client's own work stays small."""
    writer.write(request)
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, json.loads(await reader.readexactly(length))


def make_request(content: bytes) -> bytes:
    body = b'--b\r\ncontent-disposition: form-data; name="images"; filename="x"\r\n\r\n' + content + b"\r\n--b--\r\n"
    return (
        f"POST /v1/predict?top=1000 HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def client(
    number: int, port: int, until: float, requests: list[bytes], expected: list[np.ndarray], totals: LoadTotals
) -> None:
    rng = np.random.default_rng(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        chosen, started = int(rng.integers(len(requests))), time.monotonic()
        try:
            status, body = await send(reader, writer, requests[chosen])
        except (OSError, asyncio.IncompleteReadError, IndexError):
            totals.failed += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        if status == 503:
            totals.rejected += 1
            await asyncio.sleep(0.1)
        elif status == 200:
            totals.answered += 1
            totals.latencies.append(time.monotonic() - started)
            row = np.zeros(len(expected[chosen]))
            for answer in body["predictions"][0]["answers"]:
                row[answer["index"]] = answer["probability"]
            totals.wrong += bool(np.abs(row - expected[chosen]).max() > TOLERANCE)
        else:
            totals.failed += 1
    writer.close()


async def load(
    server: ServerProcess,
    seconds: float,
    clients: int,
    requests: list[bytes],
    expected: list[np.ndarray],
    totals: LoadTotals,
) -> None:
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number, server.port, started + seconds, requests, expected, totals))
    totals.seconds += time.monotonic() - started


async def metric(server: ServerProcess, name: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def measure(
    batching: ServerProcess,
    unbatched: ServerProcess,
    seconds: float,
    clients: int,
    requests: list[bytes],
    expected: list[np.ndarray],
) -> dict[str, Any]:
    """Load both servers for `seconds` each, in six turns, and return the results."""
    batched, single, memory, queue = LoadTotals(), LoadTotals(), [], []
    turns = 6

    async def monitor() -> None:
        while True:
            queue.append(await metric(batching, "vitkit_queue_images"))
            memory.append(batching.resident_mb())
            await asyncio.sleep(0.5)

    monitoring = asyncio.create_task(monitor())
    for _ in range(turns):
        await load(batching, seconds / turns, clients, requests, expected, batched)
        await load(unbatched, seconds / turns, clients, requests, expected, single)
    monitoring.cancel()
    images = await metric(batching, "vitkit_batch_images_sum")
    batches = await metric(batching, "vitkit_batch_images_count")
    warm = memory[int(len(memory) * WARM_UP) :]
    fifth = max(1, len(warm) // 5)
    return {
        "clients": clients,
        "seconds": round(batched.seconds, 1),
        "answered": batched.answered,
        "answered_without_batching": single.answered,
        "rejected": batched.rejected + single.rejected,
        "failed": batched.failed + single.failed,
        "wrong": batched.wrong + single.wrong,
        "images_per_second": round(batched.rate, 1),
        "images_per_second_without_batching": round(single.rate, 1),
        "ratio": round(batched.rate / single.rate, 3),
        "latency_median": round(statistics.median(batched.latencies), 3),
        "latency_99": round(float(np.quantile(batched.latencies, 0.99)), 3),
        "mean_batch": round(images / batches, 2),
        "max_queue": int(max(queue)),
        "memory_mb": [round(float(tenth.max())) for tenth in np.array_split(np.array(memory), 10)],
        "memory_after_warm_up_mb": round(max(warm[:fifth])),
        "memory_at_the_end_mb": round(max(warm[-fifth:])),
    }


def synthetic_images(count: int) -> list[bytes]:
    rng, contents = np.random.default_rng(0), []
    for _ in range(count):
        blocks = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(blocks).resize((500, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents.append(file.getvalue())
    return contents


def save_random_model(folder: Path, name: str) -> str:
    import torch

    torch.manual_seed(0)
    model = vitkit.create(name, classes=37, image=32 if name.startswith("mu") else 224)
    with torch.no_grad():
        for parameter in model.parameters():  # a head of zeros would give every image the same prediction
            parameter.add_(torch.randn_like(parameter) * 0.02)
    vitkit.save(model, folder / "run", format="vitkit")
    return str(folder / "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="a run folder or weights; default: a model with random weights")
    parser.add_argument("--model", default="Ti/16", help="name of the model with random weights")
    parser.add_argument("--images", type=Path, help="a folder of .jpg files, at any depth")
    parser.add_argument("--count", type=int, default=100, help="number of different images")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--fast", action="store_true", help="serve with --fast")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or save_random_model(Path(folder), options.model)
        contents = (
            [path.read_bytes() for path in sorted(options.images.rglob("*.jpg"))[: options.count]]
            if options.images
            else synthetic_images(options.count)
        )
        classifier = vitkit.Classifier(run)
        expected = [classifier(content).probabilities for content in contents]
        distinct = len({row.round(3).tobytes() for row in expected})
        del classifier
        flags = ["--fast"] if options.fast else []
        batching, unbatched = (ServerProcess(run, "--batch", str(size), *flags) for size in (options.batch, 1))
        result = asyncio.run(
            measure(
                batching,
                unbatched,
                options.seconds,
                options.clients,
                [make_request(content) for content in contents],
                expected,
            )
        )
        result = {"distinct_predictions": distinct, **result, "exit_codes": [batching.stop(), unbatched.stop()]}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name.replace('_', ' '):<36}{value}")


if __name__ == "__main__":
    main()

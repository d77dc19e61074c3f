"""A server under load: 64 clients, each waiting for its answer before it asks again; with micro-batching and without.

    python benchmarks/serve.py [--run RUN] [--pictures FOLDER] [--seconds 60] [--clients 64] [--json]

Two servers of the same model run side by side, one that computes up to --batch pictures together and one that computes
them one at a time; they are loaded in turns, a few seconds each, so that whatever else the machine does falls on both.
Every answer is compared with the one that Classifier gives for that picture alone. Without --run, a small untrained
model (Ti/16 at 224 px with random weights) is served; without --pictures, made-up ones.
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

TOLERANCE = 1e-4
WARM_UP = 0.25  # of the time, after which memory is to be flat


@dataclass
class Tally:
    answered: int = 0
    refused: int = 0  # 503, and asked again
    wrong: int = 0
    failed: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0


class Server:
    def __init__(self, run: str, *options: str):
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
                "cpu",
                *options,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def resident(self) -> float:
        """MB in memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(120)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, Any]:
    """Plain HTTP over one connection: the client's own work is not to be what is measured."""
    writer.write(request)
    status = int((await reader.readline()).split()[1])
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return status, json.loads(await reader.readexactly(length))


def request_of(content: bytes) -> bytes:
    body = b'--b\r\ncontent-disposition: form-data; name="pictures"; filename="x"\r\n\r\n' + content + b"\r\n--b--\r\n"
    return (
        f"POST /v1/predict?top=1000 HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def client(
    number: int, port: int, until: float, requests: list[bytes], expected: list[np.ndarray], tally: Tally
) -> None:
    rng = np.random.default_rng(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        chosen, began = int(rng.integers(len(requests))), time.monotonic()
        try:
            status, answer = await ask(reader, writer, requests[chosen])
        except (OSError, asyncio.IncompleteReadError, IndexError):
            tally.failed += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        if status == 503:
            tally.refused += 1
            await asyncio.sleep(0.1)
        elif status == 200:
            tally.answered += 1
            tally.latencies.append(time.monotonic() - began)
            row = np.zeros(len(expected[chosen]))
            for each in answer["predictions"][0]["answers"]:
                row[each["index"]] = each["probability"]
            tally.wrong += bool(np.abs(row - expected[chosen]).max() > TOLERANCE)
        else:
            tally.failed += 1
    writer.close()


async def load(
    server: Server, seconds: float, clients: int, requests: list[bytes], expected: list[np.ndarray], tally: Tally
) -> None:
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number, server.port, began + seconds, requests, expected, tally))
    tally.seconds += time.monotonic() - began


async def metric(server: Server, name: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


async def measure(
    together: Server, alone: Server, seconds: float, clients: int, requests: list[bytes], expected: list[np.ndarray]
) -> dict[str, Any]:
    """The server that batches gets all of `seconds`, in turns of a sixth; the other as many turns."""
    with_batches, one_by_one, memory, deepest = Tally(), Tally(), [], [0.0]
    turns = 6

    async def watch() -> None:
        while True:
            deepest[0] = max(deepest[0], await metric(together, "vitkit_queue_pictures"))
            memory.append(together.resident())
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    for _ in range(turns):
        await load(together, seconds / turns, clients, requests, expected, with_batches)
        await load(alone, seconds / turns, clients, requests, expected, one_by_one)
    watching.cancel()
    pictures = await metric(together, "vitkit_batch_pictures_sum")
    batches = await metric(together, "vitkit_batch_pictures_count")
    warm = memory[int(len(memory) * WARM_UP) :]
    fifth = max(1, len(warm) // 5)
    return {
        "clients": clients,
        "seconds": round(with_batches.seconds, 1),
        "answered": with_batches.answered,
        "answered_one_by_one": one_by_one.answered,
        "refused": with_batches.refused + one_by_one.refused,
        "failed": with_batches.failed + one_by_one.failed,
        "wrong": with_batches.wrong + one_by_one.wrong,
        "pictures_a_second": round(with_batches.rate, 1),
        "one_by_one_a_second": round(one_by_one.rate, 1),
        "ratio": round(with_batches.rate / one_by_one.rate, 3),
        "latency_median": round(statistics.median(with_batches.latencies), 3),
        "latency_99": round(float(np.quantile(with_batches.latencies, 0.99)), 3),
        "mean_batch": round(pictures / batches, 2),
        "deepest_queue": int(deepest[0]),
        "memory_mb": [round(float(part.max())) for part in np.array_split(np.array(memory), 10)],
        "memory_after_warm_up_mb": round(max(warm[:fifth])),
        "memory_at_the_end_mb": round(max(warm[-fifth:])),
    }


def made_up(count: int) -> list[bytes]:
    rng, contents = np.random.default_rng(0), []
    for _ in range(count):
        blocks = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(blocks).resize((500, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents.append(file.getvalue())
    return contents


def untrained(folder: Path, name: str) -> str:
    import torch

    torch.manual_seed(0)
    model = vitkit.create(name, classes=37, image=32 if name.startswith("mu") else 224)
    with torch.no_grad():
        for parameter in model.parameters():  # a head of zeros would answer every picture alike
            parameter.add_(torch.randn_like(parameter) * 0.02)
    vitkit.save(model, folder / "run", format="vitkit")
    return str(folder / "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="a run folder or weights; else an untrained model")
    parser.add_argument("--model", default="Ti/16", help="the untrained model's name")
    parser.add_argument("--pictures", type=Path, help="a folder of .jpg files, at any depth")
    parser.add_argument("--count", type=int, default=100, help="different pictures")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--fast", action="store_true", help="serve with --fast; answers are then not compared")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or untrained(Path(folder), options.model)
        contents = (
            [path.read_bytes() for path in sorted(options.pictures.rglob("*.jpg"))[: options.count]]
            if options.pictures
            else made_up(options.count)
        )
        classifier = vitkit.Classifier(run)
        expected = [classifier(content).probabilities for content in contents]
        different = len({row.round(3).tobytes() for row in expected})
        del classifier
        how = ["--fast"] if options.fast else []
        together, alone = Server(run, "--batch", str(options.batch), *how), Server(run, "--batch", "1", *how)
        found = asyncio.run(
            measure(
                together,
                alone,
                options.seconds,
                options.clients,
                [request_of(content) for content in contents],
                expected,
            )
        )
        found = {"different_answers": different, **found, "exit_codes": [together.stop(), alone.stop()]}
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name.replace('_', ' '):<26}{value}")


if __name__ == "__main__":
    main()

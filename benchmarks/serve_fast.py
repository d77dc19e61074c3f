"""What `vitkit serve --fast` gains for clients: an exact and a fast server in turns, beside what they announce.

    python benchmarks/serve_fast.py [--model Ti/16] [--device cpu] [--clients 1 8] [--seconds 60] [--json]
    python benchmarks/serve_fast.py --model B/16 --device cuda

Each client sends one image at a time and waits for the answer. The two servers get their load in turns of a second or
so, and the ratios are medians over pairs of turns, so that whatever else the machine does affects both. A request takes
longer than the model: the image is decoded and resized, and HTTP has its share. `server_seconds` is the part between a
request's head and its response, by the server's own metric.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from serve import LoadTotals, ServerProcess, load, make_request, metric, save_random_model, synthetic_images

import vitkit

TURN_SECONDS = 1.0


async def computes(server: ServerProcess) -> str:
    """Return what the server announces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return str(json.loads(body)["models"][0]["computes"])


async def turn(server: ServerProcess, clients: int, requests: list[bytes], expected: list[Any]) -> dict[str, float]:
    """Load a server for a moment, and return its rate and latencies."""
    totals = LoadTotals()
    before = [
        await metric(server, f'vitkit_request_seconds_{part}{{route="/v1/predict"}}') for part in ("sum", "count")
    ]
    await load(server, TURN_SECONDS, clients, requests, expected, totals)
    after = [await metric(server, f'vitkit_request_seconds_{part}{{route="/v1/predict"}}') for part in ("sum", "count")]
    return {
        "rate": totals.rate,
        "latency": statistics.median(totals.latencies),
        "server_seconds": (after[0] - before[0]) / max(after[1] - before[1], 1.0),
        "failed": totals.failed + totals.rejected,
    }


async def compare(
    exact: ServerProcess, fast: ServerProcess, clients: int, seconds: float, requests: list[bytes], expected: list[Any]
) -> dict[str, Any]:
    pairs = []
    for _ in range(max(2, round(seconds / (2 * TURN_SECONDS)))):
        pairs.append([await turn(server, clients, requests, expected) for server in (exact, fast)])
    pairs = pairs[1:]  # the first warms up

    def median(index: int, name: str) -> float:
        return statistics.median(pair[index][name] for pair in pairs)

    def ratio(name: str, slow: int = 0) -> float:
        return round(statistics.median(pair[slow][name] / pair[1 - slow][name] for pair in pairs), 2)

    return {
        "clients": clients,
        "exact_ms": round(1000 * median(0, "latency"), 2),
        "fast_ms": round(1000 * median(1, "latency"), 2),
        "exact_server_ms": round(1000 * median(0, "server_seconds"), 2),
        "fast_server_ms": round(1000 * median(1, "server_seconds"), 2),
        "latency_ratio": ratio("latency"),
        "rate_ratio": ratio("rate", slow=1),
        "failed": sum(side["failed"] for pair in pairs for side in pair),
        "turns": len(pairs),
    }


async def measure(options: argparse.Namespace, run: str, requests: list[bytes], expected: list[Any]) -> dict[str, Any]:
    exact = ServerProcess(run, device=options.device)
    fast = ServerProcess(run, "--fast", device=options.device)
    try:
        announced = [await computes(server) for server in (exact, fast)]
        rows = [await compare(exact, fast, clients, options.seconds, requests, expected) for clients in options.clients]
    finally:
        codes = [server.stop() for server in (exact, fast)]
    return {"model": options.run or options.model, "announced": announced, "rows": rows, "exit_codes": codes}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", help="a run folder or weights; default: a model with random weights")
    parser.add_argument("--model", default="Ti/16", help="name of the model with random weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--images", type=Path, help="a folder of .jpg files, at any depth; default: 500 x 400, synthetic"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each number of clients")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or save_random_model(Path(folder), options.model)
        contents = (
            [path.read_bytes() for path in sorted(options.images.rglob("*.jpg"))[:50]]
            if options.images
            else synthetic_images(50)
        )
        classifier = vitkit.Classifier(run)
        expected = [classifier(content).probabilities for content in contents]
        del classifier
        requests = [make_request(content) for content in contents]
        result = asyncio.run(measure(options, run, requests, expected))
    if options.json:
        print(json.dumps(result))
        return
    for name, text in zip(("exact", "fast"), result["announced"], strict=True):
        print(f"{name:<8}{text}")
    print("clients   exact    fast  ratio of latencies  of rates  in the server")
    for row in result["rows"]:
        print(
            f"{row['clients']:>7}{row['exact_ms']:>8.1f}{row['fast_ms']:>8.1f} ms{row['latency_ratio']:>17}"
            f"{row['rate_ratio']:>10}  {row['exact_server_ms']:.1f} and {row['fast_server_ms']:.1f} ms"
        )


if __name__ == "__main__":
    main()

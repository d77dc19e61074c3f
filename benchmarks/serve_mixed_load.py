"""Mixed load on a server for a long time: right answers, and level memory, while clients of every kind come and go.

    python benchmarks/serve_mixed_load.py --minutes 60 [--run RUN] [--pace 1] [--samples FILE] [--json]

Clients send valid images of every format (with keep-alive and without, in forms, in JSON and as they are), damaged and
hostile ones, send slowly, stop sending, disconnect, half-close, open hundreds of connections, guess keys, and ask for
what is not there. Each kind has addresses of its own, 127.0.K.N, as clients on different machines would. Their load
leaves a machine of two cores about half idle; --pace 2 doubles it.

It fails, with exit code 1, unless
- every answer equals that of Classifier for the image alone, and every status is one that its request should get;
- 99 % of the valid requests are answered with 200, the others with 503 or 504 (busy);
- in the second half of the time, resident memory of the server's processes grows by at most 3 % or 32 MB, file
  descriptors by 3, threads and processes by 1 (process_tree.growth); at rest, all are as few as before the load;
- the server ends with exit code 0 at SIGTERM, and has logged no traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from mixed_clients import CLIENTS, KEY, Load, ask, get
from mixed_images import make_samples
from process_tree import Usage, growth, measure
from serve import save_random_model

import vitkit

SAMPLE_SECONDS = 1.0
MIN_ANSWERED = 0.99  # of the valid requests
MAX_GROWTH = {"resident_mb": 32.0, "descriptors": 3.0, "threads": 1.0, "processes": 1.0}  # in the second half
MAX_MEMORY_GROWTH = 0.03  # or so much of the median
REST_SECONDS = 60  # until everything has to be at rest


class Server:
    def __init__(self, run: str, log: Path, options: list[str]):
        self.log = log
        command = [sys.executable, "-m", "vitkit", "serve", f"model={run}", "--port", "0", "--json", "--device", "cpu"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--limit", "patience=5", *options],
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "VITKIT_API_KEY": KEY},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the server did not start:\n{log.read_text()}")
        self.port = int(json.loads(line)["port"])

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


async def run_load(server: Server, load: Load, minutes: float, usages: list[Usage]) -> dict[str, Any]:
    """Let all clients run, sample the server's processes, and return what they hold before and after, at rest."""
    for sample in load.samples["valid"]:  # opens what is opened once, and fills caches
        await load.post_valid("127.0.0.9", [sample], "warm-up")
    before = await at_rest(server, load)
    load.until = time.monotonic() + 60 * minutes
    tasks = [asyncio.create_task(load.repeat(client, number)) for client in CLIENTS for number in range(client.count)]
    started, said = time.monotonic(), 0
    while (now := time.monotonic()) < load.until and server.process.poll() is None:
        usages.append(measure(server.process.pid, now - started))
        if (minute := int((now - started) / 60)) > said:
            said = minute
            latest = usages[-1]
            print(
                f"{minute:>4} min  {load.answered:,} images answered, {load.wrong} wrong, "
                f"{len(load.problems)} problems; {latest.resident_mb:.0f} MB, {latest.descriptors} descriptors, "
                f"{latest.threads} threads, {latest.processes} processes",
                file=sys.stderr,
                flush=True,
            )
        await asyncio.sleep(SAMPLE_SECONDS)
    _, late = await asyncio.wait(tasks, timeout=120)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if server.process.poll() is not None:
        load.problem("server", f"it ended with exit code {server.process.returncode}")
        return {}
    after = await at_rest(server, load)
    return {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}


async def at_rest(server: Server, load: Load) -> Usage:
    """Wait until no image is queued and idle connections are closed, and return what the processes hold."""
    until = time.monotonic() + REST_SECONDS
    least: Usage | None = None
    while time.monotonic() < until:
        await asyncio.sleep(2)
        usage = measure(server.process.pid, 0.0)
        text = (await ask(server.port, "127.0.0.9", get("/metrics"))).body.decode()
        rested = "vitkit_queue_images 0.0" in text
        if rested and least is not None and usage.descriptors >= least.descriptors:
            return least
        if rested and (least is None or usage.descriptors < least.descriptors):
            least = usage
    load.problem("server", "it was not at rest a minute after the load")
    return measure(server.process.pid, 0.0)


def judge(usages: list[Usage], rest: dict[str, Any], load: Load) -> dict[str, Any]:
    """Return how much each quantity grows in the second half, and note what grows too much."""
    seconds = np.array([usage.seconds for usage in usages])
    second_half = seconds >= seconds[-1] / 2
    result: dict[str, Any] = {}
    for name, allowed in MAX_GROWTH.items():
        values = np.array([getattr(usage, name) for usage in usages], dtype=float)
        late = values[second_half]
        if name == "resident_mb":
            allowed = max(allowed, MAX_MEMORY_GROWTH * float(np.median(late)))
        grown = growth(seconds[second_half], late)
        tenths = [round(float(np.median(part))) for part in np.array_split(values, min(10, len(values)))]
        result[name] = {
            "tenths": tenths,
            "max": round(float(values.max())),
            "growth_in_second_half": round(grown, 2),
            "allowed": round(allowed, 2),
        }
        if grown > allowed:
            load.problem("level", f"{name} grew by {grown:.1f} in the second half, {allowed:.1f} at most is level")
        if rest and name != "resident_mb" and rest["after"][name] > rest["before"][name] + MAX_GROWTH[name]:
            load.problem("level", f"{name} at rest: {rest['before'][name]} before, {rest['after'][name]} after")
    return result


def judge_answers(load: Load) -> dict[str, Any]:
    valid = {kind: counts for kind, counts in load.statuses.items() if kind.startswith("valid")}
    total = sum(sum(counts.values()) for counts in valid.values())
    answered = sum(counts[200] for counts in valid.values())
    if not total or answered < MIN_ANSWERED * total:
        load.problem("valid", f"{answered:,} of {total:,} requests were answered with 200")
    if load.wrong:
        load.problem("wrong", f"{load.wrong:,} answers differ from Classifier's")
    seconds = np.array(load.seconds or [math.nan])
    return {
        "valid_requests": total,
        "valid_answered": answered,
        "images_answered": load.answered,
        "images_refused": load.refused,
        "wrong": load.wrong,
        "latency_median": round(float(np.median(seconds)), 3),
        "latency_99": round(float(np.quantile(seconds, 0.99)), 3),
        "statuses": {kind: dict(sorted(counts.items())) for kind, counts in sorted(load.statuses.items())},
    }


def print_result(result: dict[str, Any]) -> None:
    for name, value in result.items():
        if isinstance(value, dict):
            print(name.replace("_", " "))
            for key, inner in value.items():
                print(f"  {key:<26}{inner}")
        elif isinstance(value, list):
            print(f"{name.replace('_', ' ')}: {len(value)}")
            for line in value:
                print(f"  {line}")
        else:
            print(f"{name.replace('_', ' '):<24}{value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--run", help="a run folder or weights; default: a model with random weights")
    parser.add_argument("--model", default="Ti/16", help="name of the model with random weights")
    parser.add_argument("--damaged", type=int, default=300, help="number of damaged images")
    parser.add_argument("--pace", type=float, default=1.0, help="how fast clients send; 2: half the pauses")
    parser.add_argument("--options", nargs="*", default=[], metavar="OPTION", help="further options of vitkit serve")
    parser.add_argument("--samples", type=Path, help="file for the samples of the server's processes, as CSV")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of Pillow about the damaged images
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # it logs each damaged tag
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard > 0 else max(soft, 4096), hard))
    usages: list[Usage] = []
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or save_random_model(Path(folder), options.model)
        print("making the images and their right answers", file=sys.stderr, flush=True)
        samples = make_samples(vitkit.Classifier(run), options.damaged)
        server = Server(run, Path(folder) / "log", options.options)
        load = Load(server.port, samples, options.pace)
        rest: dict[str, Any] = {}
        try:
            rest = asyncio.run(run_load(server, load, options.minutes, usages))
        except KeyboardInterrupt:
            load.problem("load", "it was stopped before its time")
        finally:
            exit_code = server.stop()
        log = server.log.read_text(errors="replace")
    if options.samples:
        lines = [",".join(field.name for field in dataclasses.fields(Usage))]
        lines += [",".join(map(str, dataclasses.astuple(usage))) for usage in usages]
        options.samples.write_text("\n".join(lines) + "\n")
    if exit_code != 0:
        load.problem("server", f"exit code {exit_code} at SIGTERM")
    if "Traceback" in log:
        load.problem("server", f"it logged a traceback: …{log[-1000:]}")
    result = {
        "minutes": options.minutes,
        **judge_answers(load),
        **(judge(usages, rest, load) if len(usages) > 3 else {}),
        "at_rest": rest,
        "log": [line[:200] for line in log.splitlines()[-20:]],
        "exit_code": exit_code,
        "problems": load.problem_lines(),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print_result(result)
        print("failed" if result["problems"] else "passed")
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()

"""How time and memory of one layer grow with the tokens: induced attention beside attention between all pairs.

    python benchmarks/induced.py                 prints the table; CPU or GPU, whichever is there
    python benchmarks/induced.py --figure FILE   also draws it

Both layers train (forward and backward) on the same tokens in one process, in turns, and the median of a few rounds
counts. Memory is what autograd keeps for the backward pass, with attention weights formed and without (torch's fused
attention keeps none, so only its time is quadratic). Seconds depend on the machine; read their growth.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitkit.cost import cost
from vitkit.model.build import build_on_meta
from vitkit.model.config import ViTConfig
from vitkit.model.encoder import Block
from vitkit.model.induced import InducedBlock

TOKENS = (64, 256, 1024, 4096)
WIDTH, HEADS, POINTS = 192, 3, 32
FORMED, FUSED = "weights formed", "fused"


@dataclass(frozen=True)
class Measured:
    seconds: float
    kept_mib: dict[str, float]  # by kind of attention
    gmacs: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="draw the table here")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    table = {tokens: measure(tokens, device, arguments.rounds) for tokens in TOKENS}
    print(markdown(table))
    if arguments.figure:
        draw(table, arguments.figure)


def measure(tokens: int, device: torch.device, rounds: int) -> dict[str, Measured]:
    """Return both layers' figures for an image of so many tokens."""
    layers = {"full": config(tokens, 0), "induced": config(tokens, POINTS)}
    built: dict[str, nn.Module] = {
        "full": Block(layers["full"], drop=0.0).to(device),
        "induced": InducedBlock(layers["induced"], drop=0.0).to(device),
    }
    x = torch.randn(1, tokens, WIDTH, device=device)
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for turn in range(rounds + 1):
        for name, layer in built.items():
            taken = seconds_of_step(layer, x)
            if turn:  # the first one warms up
                seconds[name].append(taken)
    return {
        name: Measured(
            median(seconds[name]),
            {
                FUSED: kept_bytes(layer, x) / 2**20,
                FORMED: kept_bytes(layer, x, formed=True) / 2**20,
            },
            layer_macs(layers[name]) / 1e9,
        )
        for name, layer in built.items()
    }


def config(tokens: int, induced: int) -> ViTConfig:
    return ViTConfig(
        depth=1,
        width=WIDTH,
        mlp=4 * WIDTH,
        heads=HEADS,
        patch=1,
        image=(1, tokens),
        classes=0,
        positions="none",
        pool="gap",
        class_token=False,
        induced=induced,
    )


def layer_macs(config: ViTConfig) -> int:
    """Return the multiply-adds of the layer alone: the model's without its patch embedding."""
    embedding = build_on_meta(config).get_submodule("patches.project")
    return cost(config).macs - config.tokens * int(embedding.weight.numel())


def seconds_of_step(layer: nn.Module, x: Tensor) -> float:
    _synchronise(x)
    start = time.perf_counter()
    run(layer, x).sum().backward()
    _synchronise(x)
    return time.perf_counter() - start


def kept_bytes(layer: nn.Module, x: Tensor, *, formed: bool = False) -> int:
    """Return the bytes of the tensors that autograd keeps between forward and backward, weights left out."""
    own = {value.untyped_storage().data_ptr() for value in layer.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def remember(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    backends = [SDPBackend.MATH] if formed else [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    with sdpa_kernel(backends), torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        run(layer, x)
    return sum(storage.nbytes() for address, storage in storages.items() if address not in own)


def run(layer: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = layer(x, None, {}, "block0")
    return output


def markdown(table: dict[int, dict[str, Measured]]) -> str:
    """Return the table of the page: figures, and how often those of 64 tokens they are."""
    lines = [
        "| tokens | attention | GMACs | kept, weights formed, MiB | kept, fused, MiB | ms a step |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    first = table[TOKENS[0]]
    for tokens, layers in table.items():
        for name, one in layers.items():
            formed, fused = (
                f"{one.kept_mib[kind]:.1f} (x {one.kept_mib[kind] / first[name].kept_mib[kind]:.0f})"
                for kind in (FORMED, FUSED)
            )
            growth = f"{1000 * one.seconds:.1f} (x {one.seconds / first[name].seconds:.0f})"
            lines.append(f"| {tokens:,} | {name} | {one.gmacs:.3f} | {formed} | {fused} | {growth} |")
    return "\n".join(lines)


def draw(table: dict[int, dict[str, Measured]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (time_axes, memory_axes) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, colour in (("full", "tab:red"), ("induced", "tab:blue")):
        layers = [table[tokens][name] for tokens in TOKENS]
        label = "all pairs" if name == "full" else f"{POINTS} inducing points"
        time_axes.loglog(TOKENS, [1000 * one.seconds for one in layers], "o-", color=colour, label=label)
        for kind, style in ((FORMED, "o-"), (FUSED, "o:")):
            kept = [one.kept_mib[kind] for one in layers]
            memory_axes.loglog(TOKENS, kept, style, color=colour, label=f"{label}, {kind}")
    time_axes.set(title="milliseconds, forward and backward", xlabel="tokens")
    memory_axes.set(title="MiB kept for the backward pass", xlabel="tokens")
    for axes in (time_axes, memory_axes):
        axes.set_xticks(TOKENS, [f"{tokens:,}" for tokens in TOKENS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _synchronise(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


if __name__ == "__main__":
    main()

"""Show that attention by positions alone is a convolution: the error against the sharpness, and where heads look.

python docs/related/two_by_two.py --write draws two-by-two.png and renews the table of two-by-two.md; without --write
it prints the table.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.model.offset_positions import Quadratic
from vitkit.model.positional_attention import PositionalAttention, as_convolution

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "two-by-two.md", HERE / "two-by-two.png"
MARKS = "<!-- table -->", "<!-- /table -->"
GRID, WIDTH = (16, 16), 16  # 32 x 32 pixels in 2x2 patches
SHARPNESS = (1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 50)
SHOWN = (0.5, 2.0, 40.0)
KERNELS = (3, 5)
DTYPES = {"float64": torch.float64, "float32": torch.float32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew the page's table and picture")
    errors = {
        (side, name): [error(side, sharpness, dtype) for sharpness in SHARPNESS]
        for side in KERNELS
        for name, dtype in DTYPES.items()
    }
    table = markdown(errors)
    if not parser.parse_args().write:
        print(table)
        return
    draw(errors)
    page = PAGE.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(MARKS[0])}.*{re.escape(MARKS[1])}", re.DOTALL)
    PAGE.write_text(between.sub(lambda _: f"{MARKS[0]}\n{table}\n{MARKS[1]}", page), encoding="utf-8")


def layer(side: int, sharpness: float, kernel: Tensor) -> tuple[PositionalAttention, Quadratic]:
    """Return attention whose weights the theorem sets: a head for each place of a kernel."""
    attention = PositionalAttention(width=WIDTH, heads=side**2).to(kernel.dtype)
    positions = Quadratic(grid=GRID, heads=side**2).to(kernel.dtype)
    as_convolution(attention, positions, kernel, sharpness=sharpness)
    return attention, positions


@torch.no_grad()
def error(side: int, sharpness: float, dtype: torch.dtype) -> float:
    """Return the largest difference to torch's float64 convolution in the interior, relative to its largest value."""
    generator = torch.Generator().manual_seed(side)
    kernel = torch.randn(WIDTH, WIDTH, side, side, generator=generator).to(dtype)
    image = torch.randn(1, WIDTH, *GRID, generator=generator).to(dtype)
    attention, positions = layer(side, sharpness, kernel)
    ours = attention(image.flatten(2).mT, positions).mT.unflatten(2, GRID).double()
    theirs, edge = F.conv2d(image.double(), kernel.double()), side // 2
    return float((ours[..., edge:-edge, edge:-edge] - theirs).abs().max() / theirs.abs().max())


def markdown(errors: dict[tuple[int, str], list[float]]) -> str:
    names = [f"{side}x{side}, {side**2} heads, {name}" for side, name in errors]
    lines = [f"| sharpness α | {' | '.join(names)} |", f"|{' --- |' * (len(names) + 1)}"]
    for row, sharpness in enumerate(SHARPNESS):
        lines.append(f"| {sharpness} | {' | '.join(f'{column[row]:.1e}' for column in errors.values())} |")
    return "\n".join(lines)


def draw(errors: dict[tuple[int, str], list[float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 1 + len(SHOWN), figsize=(11, 3), layout="constrained", width_ratios=(1.7, 1, 1, 1))
    for (side, name), column in errors.items():
        colour, style = ("tab:blue", "tab:red")[side // 2 - 1], "-" if name == "float64" else ":"
        axes[0].semilogy(SHARPNESS, column, style, color=colour, label=f"{side}x{side}, {name}")
    axes[0].set(title="attention minus convolution", xlabel="sharpness α", ylabel="largest error, relative")
    axes[0].grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    query = (GRID[0] // 2) * GRID[1] + GRID[1] // 2
    for axis, sharpness in zip(axes[1:], SHOWN, strict=True):
        _, positions = layer(3, sharpness, torch.zeros(WIDTH, WIDTH, 3, 3))
        maps = positions().softmax(-1)[:, query].detach().unflatten(1, GRID)  # (H, h, w)
        shown = maps[:, 4:13, 4:13]
        colours = torch.tensor(plt.get_cmap("tab10").colors[:9])
        axis.imshow((1 - torch.einsum("hyx,hc->yxc", shown, 1 - colours)).clamp(0, 1))
        axis.plot(4, 4, "k.", markersize=4)
        axis.set(title=f"9 heads at α = {sharpness:g}", xticks=[], yticks=[])
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()

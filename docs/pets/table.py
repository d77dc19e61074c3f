"""Print docs/pets.md from the logs in this folder: python docs/pets/table.py > docs/pets.md."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).parent
SCORE = re.compile(r"score\s+([\d.]+)% top-1")
WALL = re.compile(r"real\s+(\d+)m([\d.]+)s")
TIMM = {224: 90.92, 384: 91.25}  # timm 1.0.29 by hand, the best of three rates (one run each)


def main() -> None:
    print("# Oxford-IIIT Pet, Ti/16, Table 4's recipe\n")
    print(
        "The real AugReg Ti/16 (ImageNet-1k, timm's tensor names), Pets with short sides of 160 px, one NVIDIA H200, "
        "torch 2.11,\nbf16. The learning rate was chosen with seed 0, on a tenth of the training images held out for "
        "validation. Then three\nseeds were trained on all training images and scored once on the 3,669 test images. "
        "timm by hand is timm 1.0.29 with the\nbest of three learning rates, one run each. `table.py` makes this page "
        "from the logs in [pets/](pets/).\n"
    )
    command = "vitkit fit pets --weights vit_ti16_in1k_timm.safetensors --recipe pets_transfer --image 224"
    print(f"```sh\n{command} --lr auto --seed 0\n{command} --lr 0.01 --seed 1\n```\n")
    print(
        "| image | learning rate: validation top-1, % | test top-1 of seeds 0, 1, 2, % | mean ± deviation "
        "| timm by hand | seconds |"
    )
    print("|---|---|---|---|---|---|")
    for image in (224, 384):
        logs = [(HERE / f"{image}-seed{seed}.log").read_text() for seed in range(3)]
        tried = ", ".join(
            f"{rate}: {score}" for rate, score in re.findall(r"tried\s+learning rate ([\d.]+): ([\d.]+)%", logs[0])
        )
        scores = [float(SCORE.search(log)[1]) for log in logs]
        seconds = [60 * int(m) + float(s) for m, s in (WALL.search(log).groups() for log in logs)]
        print(
            f"| {image} | {tried} | {', '.join(f'{score:.2f}' for score in scores)} | **{mean(scores):.2f}** ± "
            f"{stdev(scores):.2f} | {TIMM[image]} | {seconds[1]:.0f} and {seconds[2]:.0f} for one run, "
            f"start-up and scoring included; {seconds[0]:.0f} with the four trials |"
        )
    print("\n## Recipes by data size, and from scratch\n")
    print(
        "One seed each. These learning rates were compared on the test images themselves: the table shows how much "
        "the learning\nrate matters, not what to expect to a tenth of a point. [transfer.md](transfer.md) says how the "
        "recipes' rates were chosen since.\n"
    )
    print("| recipe | images | learning rate | top-1, % |\n|---|---|---|---|")
    sizes = (HERE / "by-size.log").read_text()
    for size, rate, score in re.findall(r"(small|medium) ([\d.]+) score\s+([\d.]+)%", sizes):
        print(f"| {size}_transfer | {740 if size == 'small' else 3680:,} | {rate} | {score} |")
    print(f"| small_scratch, no weights | 3,680 | 0.001 | {SCORE.search((HERE / 'scratch.log').read_text())[1]} |")


if __name__ == "__main__":
    main()

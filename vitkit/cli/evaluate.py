"""The verbs that judge a model: scored on data, and its frozen features probed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.cli.options import Data, Device, Json, Label, Run, at_least, image_size, option
from vitkit.errors import ConfigError, Interrupted


def evaluate(
    run: Run,
    data: Data,
    split: Annotated[str | None, option("test where there is one, else val, unless said", "NAME")] = None,
    labels: Annotated[
        Path | None,
        option("class names of weights that carry none: one on each line, in the order of the logits", "FILE"),
    ] = None,
    label: Label = None,
    real: Annotated[Path | None, option("ImageNet-ReaL's real.json, to score against it too", "FILE")] = None,
    image: Annotated[
        tuple[int, ...] | None, option("image side, or height and width; the model's own unless said", "PX")
    ] = None,
    batch: Annotated[int, arg(help="pictures at a time")] = 64,
    device: Device = "auto",
    precision: Annotated[Literal["fp32", "bf16", "fp8"], arg(help="of the forward pass")] = "fp32",
    workers: Annotated[
        int | None, option("processes that decode pictures; as many as the device is worth, unless said", "N")
    ] = None,
    out: Annotated[Path | None, option("write the findings here as well", "FILE.json")] = None,
    json: Json = False,
) -> None:
    """How good a model is on data: accuracy with intervals, class by class, calibration, the worst mistakes.

    vitkit evaluate runs/pets photos/        vitkit evaluate hf:google/vit-base-patch16-224 imagenet/ --real real.json
    """
    at_least(1, batch=batch)
    at_least(0, workers=workers)
    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: the name of a .json file in a folder that exists is needed")
    size = None if image is None else image_size(image)

    from dataclasses import replace

    from vitkit.atomic import write_text
    from vitkit.compute.inference import check_numbers
    from vitkit.data.sources.open import open_data
    from vitkit.devices import pick_device, pick_readers
    from vitkit.evaluate.classify import evaluate as evaluate_model
    from vitkit.evaluate.matching import read_labels
    from vitkit.evaluate.show import print_evaluation
    from vitkit.evaluate.unseen import unseen
    from vitkit.progress import show_progress
    from vitkit.weights.load import load

    chosen = pick_device(device)
    opened = unseen(run, open_data(data, label=label), split)
    model = load(run, image=size)
    if labels is not None:
        model.metadata = replace(model.metadata, labels=read_labels(labels, model.config.classes))
    check_numbers(model, chosen, precision)
    found = evaluate_model(
        model,
        opened,
        split,
        device=chosen,
        precision=precision,
        batch=batch,
        workers=pick_readers(workers, chosen, 1),
        real=real,
        progress=show_progress,
    )
    if out is not None:
        write_text(out, found.to_json() + "\n", ConfigError)
    if json:
        print(found.to_json())
    else:
        print_evaluation(found)


def probe(
    run: Run,
    data: Data,
    method: Annotated[
        Literal["fewshot", "knn", "linear"],
        arg(help="the paper's least squares on a few pictures of each class; nearest neighbours; a linear layer"),
    ],
    shots: Annotated[
        tuple[int, ...] | None, option("fewshot: pictures of each class; 1 5 10 25 unless said", "N")
    ] = None,
    seeds: Annotated[int | None, option("fewshot: draws of them; 3 unless said", "N")] = None,
    neighbours: Annotated[int | None, option("knn: pictures that vote; 20 unless said", "N")] = None,
    image: Annotated[
        tuple[int, ...] | None, option("image side, or height and width; the model's own unless said", "PX")
    ] = None,
    label: Label = None,
    features: Annotated[Path | None, option("write features, labels, keys and class names here", "FILE.npz")] = None,
    batch: Annotated[int, arg(help="pictures at a time")] = 64,
    device: Device = "auto",
    precision: Annotated[Literal["fp32", "bf16", "fp8"], arg(help="of the forward pass")] = "fp32",
    workers: Annotated[
        int | None, option("processes that decode pictures; as many as the device is worth, unless said", "N")
    ] = None,
    json: Json = False,
) -> None:
    """How much a frozen model knows of data it was not trained for: few-shot, nearest neighbours, a linear probe.

    vitkit probe runs/pre photos/ --method linear        vitkit probe ViT-B_16.npz photos/ --method fewshot --shots 5
    """
    at_least(1, batch=batch, neighbours=neighbours, seeds=seeds)
    at_least(0, workers=workers)
    if shots is not None and (not shots or min(shots) < 1):
        raise ConfigError(f"--shots {' '.join(map(str, shots))}: 1 or more is needed")
    if features is not None and (features.suffix != ".npz" or not features.parent.is_dir()):
        raise ConfigError(f"--features {features}: the name of a .npz file in a folder that exists is needed")
    size = None if image is None else image_size(image)

    from vitkit.compute.inference import check_numbers
    from vitkit.data.sources.open import open_data
    from vitkit.devices import pick_device, pick_readers
    from vitkit.evaluate.features import Extractor, write_features
    from vitkit.evaluate.probe import apart, gather, pick_method, print_probe
    from vitkit.evaluate.probe import probe as probe_features
    from vitkit.progress import show_progress
    from vitkit.weights.load import load

    learner = pick_method(method, shots=shots, seeds=seeds, neighbours=neighbours)
    chosen = pick_device(device)
    opened = apart(run, open_data(data, label=label))
    model = load(run, image=size)
    check_numbers(model, chosen, precision)
    extract = Extractor(
        model=model,
        device=chosen,
        precision=precision,
        batch=batch,
        workers=pick_readers(workers, chosen, 1),
        progress=show_progress,
    )
    try:
        parts = gather(extract, opened, learner)
    except KeyboardInterrupt:
        raise Interrupted("what was computed is kept: the same command goes on from there", 130) from None
    if features is not None:
        write_features(features, parts.by_name(), opened.classes)
    found = probe_features(parts, opened, learner)
    if json:
        print(found.to_json())
    else:
        print_probe(found)

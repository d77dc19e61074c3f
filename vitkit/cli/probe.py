"""The verb `probe`: measure the frozen features of a model."""

import logging
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from vitkit.cli import options
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.errors import ConfigError, Interrupted


def probe(
    run: options.Run,
    data: options.Data,
    method: Annotated[
        Literal["fewshot", "knn", "linear"],
        arg(help="the paper's least squares on a few images of each class; nearest neighbours; a linear layer"),
    ],
    shots: Annotated[
        tuple[int, ...] | None, options.option("fewshot: images of each class; default: 1 5 10 25", "N")
    ] = None,
    seeds: Annotated[int | None, options.option("fewshot: random draws of them; default: 3", "N")] = None,
    neighbours: Annotated[int | None, options.option("knn: images that vote; default: 20", "N")] = None,
    image: options.ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    label: options.Label = None,
    features: Annotated[
        Path | None, options.option("write features, labels, keys and class names to this file", "FILE.npz")
    ] = None,
    batch: options.InferenceBatch = 64,
    device: options.Device = "auto",
    precision: options.InferencePrecision = "fp32",
    workers: options.Workers = None,
    max_failed: options.MaxFailed = 0.01,
    json: options.Json = False,
) -> None:
    """Probe the frozen features of a model on new data: few-shot, nearest neighbours, a linear probe.

    vitkit probe runs/pre photos/ --method linear        vitkit probe ViT-B_16.npz photos/ --method fewshot --shots 5
    """
    options.at_least(1, batch=batch, neighbours=neighbours, seeds=seeds)
    options.at_least(0, workers=workers)
    options.check_max_failed(max_failed)
    if shots is not None and (not shots or min(shots) < 1):
        raise ConfigError(f"--shots {' '.join(map(str, shots))}: 1 or more is needed")
    if features is not None and (features.suffix != ".npz" or not features.parent.is_dir()):
        raise ConfigError(f"--features {features}: the name of a .npz file in a folder that exists is needed")
    size = None if image is None else options.image_size(image)
    preprocessing.check()

    from dataclasses import asdict

    from vitkit.compute.features import FeatureExtractor, write_features
    from vitkit.compute.inference import check_precision
    from vitkit.data.groups import keep_together
    from vitkit.data.sources.open import open_data
    from vitkit.devices import cores, pick_device, pick_workers
    from vitkit.evaluate.printing import print_probe
    from vitkit.evaluate.probe import extract_features, held_out_as_test, pick_method
    from vitkit.evaluate.probe import probe as probe_features
    from vitkit.progress import show_progress
    from vitkit.weights.load import load

    probe_method = pick_method(method, shots=shots, seeds=seeds, neighbours=neighbours)
    chosen = pick_device(device)
    kept = keep_together(held_out_as_test(run, open_data(data, label=label)), workers=cores(), progress=show_progress)
    opened = kept.data
    for name, text in kept.lines:
        if name == "warning":
            logging.getLogger("vitkit").warning(text)
    model = load(run, image=size)
    preprocessing.apply(model)
    check_precision(model, chosen, precision)
    extract = FeatureExtractor(
        model=model,
        device=chosen,
        precision=precision,
        batch=batch,
        workers=pick_workers(workers, chosen, 1),
        max_failed=max_failed,
        progress=show_progress,
    )
    try:
        with options.advise_max_failed():
            features_of_splits = extract_features(extract, opened, probe_method)
    except KeyboardInterrupt:
        raise Interrupted(
            "the features computed so far are cached; the same command continues from there", 130
        ) from None
    if features is not None:
        write_features(features, features_of_splits.by_name(), opened.classes)
    result = probe_features(features_of_splits, opened, probe_method)
    if json:
        options.print_json("probe", {**asdict(result), **options.failures_as_json(result.left_out)})
    else:
        print_probe(result)

"""The verb `evaluate`: score a model on a dataset."""

from pathlib import Path
from typing import Annotated

from vitkit.cli import options
from vitkit.cli.image_jobs import Engine, check_engine
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.errors import ConfigError


def evaluate(
    run: options.Run,
    data: options.Data,
    split: Annotated[str | None, options.option("default: test where there is one, else val", "NAME")] = None,
    labels: options.LabelsFile = None,
    label: options.Label = None,
    real: Annotated[
        Path | None,
        options.option(
            "ImageNet-ReaL's real.json, to score against it too, or alone if the images have no labels", "FILE"
        ),
    ] = None,
    map: Annotated[
        Path | None,
        options.option(
            "JSON or CSV: the model classes that each class of the data stands for, as for ObjectNet; "
            '{"chair": ["barber chair", "rocking chair"]}',
            "FILE",
        ),
    ] = None,
    image: options.ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    batch: options.InferenceBatch = None,
    device: options.Device = "auto",
    precision: options.InferencePrecision = "fp32",
    workers: options.Workers = None,
    max_failed: options.MaxFailed = 0.01,
    engine: Engine = "local",
    out: Annotated[Path | None, options.option("also write the evaluation to this file", "FILE.json")] = None,
    json: options.Json = False,
) -> None:
    """Score a model on data: accuracy with intervals, per-class scores, calibration, the worst mistakes.

    A model that segments is scored against masks: mean IoU with its interval, IoU of each class, pixel accuracy.

    vitkit evaluate runs/pets photos/        vitkit evaluate hf:google/vit-base-patch16-224 imagenet/ --real real.json

    vitkit evaluate ti16 objectnet/images --map mappings/objectnet_to_imagenet_1k.json
    """
    options.at_least(1, batch=batch)
    options.at_least(0, workers=workers)
    options.check_max_failed(max_failed)
    check_engine(engine, device=device, workers=workers)
    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise ConfigError(f"--out {out}: the name of a .json file in a folder that exists is needed")
    size = None if image is None else options.image_size(image)
    preprocessing.check()

    from dataclasses import asdict

    from vitkit.atomic import write_text
    from vitkit.evaluate.printing import print_evaluation
    from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
    from vitkit.evaluate.segmentation_printing import print_segmentation
    from vitkit.progress import show_progress
    from vitkit.python_api import Run

    asked = Run(
        run, image=size, preprocessing=asdict(preprocessing), device=device, labels=labels, progress=show_progress
    )
    with options.advise_max_failed():
        evaluation = asked.evaluate(
            data,
            split=split,
            label=label,
            real=real,
            map=map,
            precision=precision,
            batch=batch,
            workers=workers,
            max_failed=max_failed,
            engine=engine,
        )
    if out is not None:
        write_text(out, evaluation.to_json() + "\n", ConfigError)
    if json:
        options.print_json("evaluate", {**asdict(evaluation), **options.failures_as_json(evaluation.left_out)})
    elif isinstance(evaluation, SegmentationEvaluation):
        print_segmentation(evaluation)
    else:
        print_evaluation(evaluation)

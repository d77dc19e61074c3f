"""The verb `predict`: classify images."""

from __future__ import annotations

import json as text
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional, arg

from vitkit.cli import options
from vitkit.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vitkit.predict.prediction import Prediction

log = logging.getLogger("vitkit")


def predict(
    run: options.Run,
    images: Annotated[
        Positional[tuple[str, ...]],
        options.option(
            "images, folders of them, patterns in quotes, or - for a list of them on standard input", "IMAGES…"
        ),
    ],
    top: Annotated[int, arg(help="classes for each image, the most probable first", metavar="K")] = 5,
    out: Annotated[
        Path | None,
        options.option(
            "write rows to this file; after a stop, the same command continues it", "FILE.csv|.jsonl|.parquet"
        ),
    ] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace FILE and start over")] = False,
    labels: options.LabelsFile = None,
    image: options.ImageSize = None,
    fast: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="the fastest engine of this machine; prints which, and how closely it agrees"),
    ] = False,
    device: options.Device = "auto",
    workers: options.Workers = None,
    csv: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print CSV")] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON, a line for each image")] = False,
) -> None:
    """Predict the classes of images with probabilities; an unreadable image gets the reason instead.

    vitkit predict runs/pets cat.jpg dog.jpg        vitkit predict runs/pets photos/ --out answers.csv

    The exit code is 0 if any image has a prediction, 1 if none has.
    """
    options.at_least(1, top=top)
    options.at_least(0, workers=workers)
    if csv and (json or out is not None):
        raise ConfigError("--csv, --json and --out exclude each other")
    size = None if image is None else options.image_size(image)

    from vitkit.data.sources.image_paths import find_images, unlabelled_split
    from vitkit.evaluate.matching import read_labels
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.inputs import refuse_urls
    from vitkit.predict.printing import print_predictions
    from vitkit.predict.rows import check_output_path, csv_lines
    from vitkit.predict.samples import Samples
    from vitkit.predict.stream import predict_files, predict_into, workers_for
    from vitkit.progress import no_progress, show_progress
    from vitkit.weights.load import load

    refuse_urls(images)
    paths = find_images(images)
    if out is not None:
        check_output_path(out)
    model = load(run, image=size)
    classifier = Classifier(
        model, device=device, labels=None if labels is None else read_labels(labels, model.config.classes)
    )
    if not classifier.model.metadata.labels:
        log.warning("%s has no class names, so predictions are class numbers; --labels FILE names them", run)
    workers = workers_for(len(paths), workers, classifier.device)
    if fast:
        classifier.use_fast_engine(Samples("of those asked about", unlabelled_split(paths), model.config.channels))
        print(classifier.engine.description, file=sys.stderr)
    if out is not None:
        try:
            with options.stop_cleanly_on_sigterm():
                before, failed = predict_into(
                    out,
                    classifier,
                    paths,
                    top=top,
                    workers=workers,
                    overwrite=overwrite,
                    source=run,
                    progress=show_progress,
                )
        except KeyboardInterrupt as stopped:
            command = "the same command, without --overwrite," if overwrite else "the same command"
            raise Interrupted(
                f"stopped; {command} continues after the last row of {out}.part", options.exit_code(stopped)
            ) from None
        if json:
            options.print_json({"out": str(out), "images": len(paths), "there_already": before, "unreadable": failed})
        else:
            kept = f", {before:,} of them from an earlier call" if before else ""
            print(f"written  {out}: {len(paths):,} images{kept}; {failed:,} could not be read")
        _fail_without_predictions(len(paths), failed)
        return
    progress = no_progress if sys.stdout.isatty() else show_progress  # a bar would run through the rows
    failures: Counter[str] = Counter()
    predictions = _count_failures(failures, predict_files(classifier, paths, workers=workers, progress=progress))
    if csv:
        top = min(top, len(classifier.labels))
        sys.stdout.writelines(csv_lines((prediction.record(top) for prediction in predictions), top))
    elif json:
        for prediction in predictions:
            print(text.dumps(prediction.record(top)))
    else:
        print_predictions(predictions, [str(path) for path in paths], top)
    _fail_without_predictions(len(paths), failures.total())


def _count_failures(failures: Counter[str], predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    for prediction in predictions:
        failures["unreadable"] += prediction.error is not None
        yield prediction


def _fail_without_predictions(images: int, failed: int) -> None:
    """Exit with code 1 if no image has a prediction; the rows hold the reasons."""
    if failed == images:
        sys.stdout.flush()  # main reports a full disk
        message = "the image has no prediction" if images == 1 else f"none of {images:,} images has a prediction"
        print(f"vitkit predict: {message}", file=sys.stderr)
        sys.exit(1)

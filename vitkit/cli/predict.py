"""The verb `predict`: classify images."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import arg

from vitkit import messages
from vitkit.cli import options
from vitkit.cli.image_jobs import (
    Engine,
    Fast,
    Images,
    Overwrite,
    Shard,
    check_engine,
    chosen_shard,
    fast_engine_pays,
    list_images,
    print_written,
    report_failures,
    resumable,
)
from vitkit.cli.predict_masks import Form, Overlay, predict_masks, refuse_options
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.errors import ConfigError
from vitkit.storage.urls import redacted

if TYPE_CHECKING:
    from vitkit.predict.failures import Failures
    from vitkit.predict.prediction import Prediction
    from vitkit.predict.rows import NamedAnswers

log = logging.getLogger("vitkit")


def predict(
    run: options.Run,
    images: Images,
    top: Annotated[int, arg(help="classes for each image, the most probable first", metavar="K")] = 5,
    out: Annotated[
        str | None,
        options.option(
            "write rows to this file or URL, or to part files in this folder; masks to PNG files in this folder, or to "
            "a .json file as COCO has them; after a stop, the same command continues",
            "FILE.csv|.jsonl|.parquet|.json|FOLDER",
        ),
    ] = None,
    as_: Form = None,
    overlay: Overlay = False,
    shard: Shard = None,
    engine: Engine = "local",
    overwrite: Overwrite = False,
    labels: options.LabelsFile = None,
    image: options.ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    fast: Fast = False,
    device: options.Device = "auto",
    workers: options.Workers = None,
    max_failed: options.MaxFailed = 0.01,
    csv: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print CSV")] = False,
    csv_raw: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="write names in CSV as they are, without the ' before = + - @, which spreadsheets would compute"),
    ] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON, a line for each image")] = False,
) -> None:
    """Predict the classes of images with probabilities; a missing or unreadable image gets the reason instead.

    vitkit predict runs/pets cat.jpg dog.jpg        vitkit predict runs/pets photos/ --out answers.csv

    A segmentation model gives a class for every pixel: --out masks/ writes a PNG of class numbers for each image.

    Every image has its row, whatever happens to others. The exit code is 0, or 3 if more images failed than
    --max-failed allows: by default 1 % of them, or one of a few.
    """
    options.at_least(1, top=top)
    options.at_least(0, workers=workers)
    if csv and (json or out is not None):
        raise ConfigError("--csv, --json and --out exclude each other")
    if csv_raw and not (csv or (out is not None and out.lower().endswith(".csv"))):
        raise ConfigError("--csv-raw needs --csv or --out FILE.csv")
    options.check_max_failed(max_failed)
    size = None if image is None else options.image_size(image)
    preprocessing.check()
    check_engine(engine, shard=shard, fast=fast, device=device, workers=workers)
    if engine == "ray" and out is None:
        raise ConfigError("--engine ray needs --out, for the rows.", try_="--out FOLDER, or --out answers.parquet")
    own = chosen_shard(shard, out) if engine == "local" else None

    from vitkit.evaluate.matching import read_labels
    from vitkit.model.segmenter import Segmenter
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.failures import Failures
    from vitkit.predict.image_stream import workers_for
    from vitkit.predict.printing import print_predictions
    from vitkit.predict.rows import AnswerFormat, check_output_path, csv_texts, is_folder, json_texts
    from vitkit.predict.segmentation import ImageSegmenter
    from vitkit.predict.stream import predict_files, predict_into, stream_answers
    from vitkit.progress import no_progress, show_progress
    from vitkit.text import printable_lines
    from vitkit.weights.load import load

    for_masks = out is not None and (is_folder(out) or out.lower().endswith(".json"))
    if out is not None and (engine == "ray" or not for_masks):
        check_output_path(out)
    if engine == "ray" and out is not None:
        from vitkit.predict.ray_jobs import predict_on_ray

        with resumable(out, None, overwrite=overwrite):
            before, failures = predict_on_ray(
                out,
                run,
                images,
                image=size,
                preprocessing=preprocessing.apply,
                labels=labels,
                top=top,
                csv_raw=csv_raw,
                overwrite=overwrite,
                progress=show_progress,
            )
        print_written("predict", out, None, before, failures, json=json, note="")
        report_failures("predict", failures, max_failed)
        return
    split = list_images(images)
    model = load(run, image=size)
    preprocessing.apply(model)
    names = None if labels is None else read_labels(labels, model.config.classes)
    if isinstance(model, Segmenter):
        refuse_options(csv=csv, csv_raw=csv_raw, fast=fast, shard=own)
        predict_masks(
            ImageSegmenter(model, device=device, labels=names),
            split,
            images,
            run=run,
            top=top,
            out=out,
            form=as_,
            overlay=overlay,
            overwrite=overwrite,
            workers=workers,
            max_failed=max_failed,
            json=json,
        )
        return
    if as_ is not None or overlay:
        raise ConfigError(f"{redacted(run)} classifies whole images: it has no masks for --as or --overlay.")
    if out is not None:
        check_output_path(out)
    classifier = Classifier(model, device=device, labels=names)
    if not classifier.model.metadata.labels:
        log.warning("%s has no class names, so predictions are class numbers; --labels FILE names them", redacted(run))
    messages.say("input", classifier.transform.description, file=sys.stderr)
    workers = workers_for(len(split), workers, classifier.device)
    if fast and fast_engine_pays(classifier.device, len(split)):
        from vitkit.predict.samples import Samples  # opens data of all kinds, for --fast only

        classifier.use_fast_engine(Samples("of those asked about", split, model.config.channels))
        messages.say("engine", classifier.engine.description, file=sys.stderr)
    log.info("%s images, in batches of %d, %d data workers", f"{len(split):,}", classifier.engine.batch, workers)
    log.info("engine: %s", classifier.engine.description)
    if out is not None:
        with resumable(out, own, overwrite=overwrite):
            before, failures = predict_into(
                out,
                classifier,
                split,
                top=top,
                workers=workers,
                overwrite=overwrite,
                source=run,
                csv_raw=csv_raw,
                shard=own,
                progress=show_progress,
            )
        print_written("predict", out, own, before, failures, json=json, note="")
        report_failures("predict", failures, max_failed)
        return
    progress = no_progress if sys.stdout.isatty() else show_progress  # a bar would run through the rows
    failures = Failures(len(split))
    if csv or json:
        answer_format = AnswerFormat(
            labels=classifier.labels,
            top=min(top, len(classifier.labels)),
            multilabel=classifier.multilabel,
            csv_raw=csv_raw,
        )
        answers = stream_answers(classifier, split, answer_format.top, workers=workers, progress=progress)
        texts = (csv_texts if csv else json_texts)(_count_failed_rows(failures, answers), answer_format)
        # a program reads names as they are; a terminal would obey them
        sys.stdout.writelines(map(printable_lines, texts) if sys.stdout.isatty() else texts)
    else:
        predictions = _count_failures(failures, predict_files(classifier, split, workers=workers, progress=progress))
        print_predictions(predictions, split.keys, top)
    report_failures("predict", failures, max_failed)


def _count_failed_rows(failures: Failures, blocks: Iterable[NamedAnswers]) -> Iterator[NamedAnswers]:
    for names, columns in blocks:
        failures.add_all(names, columns.errors)
        yield names, columns


def _count_failures(failures: Failures, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    for prediction in predictions:
        failures.add(prediction.name, prediction.error)
        yield prediction

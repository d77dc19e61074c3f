"""The verb that asks a model."""

from __future__ import annotations

import json as text
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, arg

from vitkit.cli.options import Device, Run, at_least, cleared_up, exit_code, image_size, option, print_json
from vitkit.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from vitkit.predict.prediction import Prediction

FEW = 256  # pictures

log = logging.getLogger("vitkit")


def predict(
    run: Run,
    images: Annotated[
        Positional[tuple[str, ...]],
        option("pictures, folders of them, patterns in quotes, or - for a list of them on standard input", "IMAGES…"),
    ],
    top: Annotated[int, arg(help="answers for each picture, the likeliest first", metavar="K")] = 5,
    out: Annotated[
        Path | None, option("rows into a file; the same command goes on after a stop", "FILE.csv|.jsonl|.parquet")
    ] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="replace FILE, and begin again")] = False,
    labels: Annotated[
        Path | None,
        option("class names of weights that carry none: one on each line, in the order of the logits", "FILE"),
    ] = None,
    image: Annotated[
        tuple[int, ...] | None, option("image side, or height and width; the model's own unless said", "PX")
    ] = None,
    fast: Annotated[
        bool,
        tyro.conf.FlagCreatePairsOff,
        arg(help="the quickest way that this machine has; says which, and how well it agrees"),
    ] = False,
    device: Device = "auto",
    workers: Annotated[
        int | None, option("processes that decode pictures; as many as the device is worth, unless said", "N")
    ] = None,
    csv: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print CSV")] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff, arg(help="print JSON, a line for each picture")] = False,
) -> None:
    """What a model sees in pictures: names and probabilities; broken pictures get a reason instead.

    vitkit predict runs/pets cat.jpg dog.jpg        vitkit predict runs/pets photos/ --out answers.csv

    Exits with 0 where any picture was answered, with 1 where not one was.
    """
    at_least(1, top=top)
    at_least(0, workers=workers)
    if csv and (json or out is not None):
        raise ConfigError("--csv, --json and --out are three ways to have the answers: one is needed")
    size = None if image is None else image_size(image)

    from vitkit.data.sources.named import as_split, find
    from vitkit.devices import pick_readers
    from vitkit.evaluate.matching import read_labels
    from vitkit.predict.classifier import Classifier
    from vitkit.predict.inputs import refuse_urls
    from vitkit.predict.printing import print_predictions
    from vitkit.predict.rows import check_name, csv_lines
    from vitkit.predict.samples import Samples
    from vitkit.predict.stream import predict_files, predict_into
    from vitkit.progress import show_progress
    from vitkit.weights.load import load

    refuse_urls(images)
    paths = find(images)
    if out is not None:
        check_name(out)
    model = load(run, image=size)
    classifier = Classifier(
        model, device=device, labels=None if labels is None else read_labels(labels, model.config.classes)
    )
    if not classifier.model.metadata.labels:
        log.warning("%s carries no class names, and answers with numbers; --labels FILE gives them names", run)
    # a process is not worth starting for pictures that are read within a second
    readers = pick_readers(workers, classifier.device, 1) if workers is not None or len(paths) > FEW else 0
    if fast:
        classifier.quicken(Samples("of those asked about", as_split(paths), model.config.channels))
        print(classifier.engine.words, file=sys.stderr)
    if out is not None:
        try:
            with cleared_up():
                before, failed = predict_into(
                    out,
                    classifier,
                    paths,
                    top=top,
                    workers=readers,
                    overwrite=overwrite,
                    source=run,
                    progress=show_progress,
                )
        except KeyboardInterrupt as stopped:
            again = "the same command, without --overwrite," if overwrite else "the same command"
            raise Interrupted(
                f"stopped; {again} goes on behind the last row in {out}.part", exit_code(stopped)
            ) from None
        if json:
            print_json({"out": str(out), "pictures": len(paths), "there_already": before, "unreadable": failed})
        else:
            kept = f", {before:,} of them from an earlier call" if before else ""
            print(f"written  {out}: {len(paths):,} pictures{kept}; {failed:,} could not be read")
        _fail_without_answers(len(paths), failed)
        return
    quiet: Any = {} if sys.stdout.isatty() else {"progress": show_progress}  # a bar would run through the rows
    failures: Counter[str] = Counter()
    predictions = _counting(failures, predict_files(classifier, paths, workers=readers, **quiet))
    if csv:
        top = min(top, len(classifier.labels))
        sys.stdout.writelines(csv_lines((prediction.record(top) for prediction in predictions), top))
    elif json:
        for prediction in predictions:
            print(text.dumps(prediction.record(top)))
    else:
        print_predictions(predictions, [str(path) for path in paths], top)
    _fail_without_answers(len(paths), failures.total())


def _counting(failures: Counter[str], predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    for prediction in predictions:
        failures["no answer"] += prediction.error is not None
        yield prediction


def _fail_without_answers(pictures: int, failed: int) -> None:
    """What was written tells why of each picture; a script looks at the exit code."""
    if failed == pictures:
        sys.stdout.flush()  # a full disk is told of by main
        what = "the picture has no answer" if pictures == 1 else f"not one of {pictures:,} pictures has an answer"
        print(f"vitkit predict: {what}", file=sys.stderr)
        sys.exit(1)

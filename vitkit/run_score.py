"""The end of a run: score the trained model on the test split, write the report and say what to do next."""

import shlex
import time
from dataclasses import replace
from functools import partial

import torch

from vitkit.atomic import write_text
from vitkit.compute.kept_inputs import KeptInputs
from vitkit.compute.split_logits import CollectLogits, collect_logits
from vitkit.config.schema import Fit
from vitkit.data.partition import Partition
from vitkit.data.sources.dataset import Data, DataError, Split
from vitkit.data.sparse_labels import SparseLabels
from vitkit.devices import pick_device, pick_workers
from vitkit.errors import Interrupted
from vitkit.evaluate.classify import evaluate
from vitkit.evaluate.evaluation import Evaluation
from vitkit.evaluate.rare_classes import recall_warning
from vitkit.evaluate.segmentation import compute_mask_of, evaluate_masks
from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
from vitkit.evaluate.thresholds import choose_thresholds
from vitkit.inspect.rollout_overlays import rollout_overlays
from vitkit.model.build import Model
from vitkit.model.segmenter import Segmenter
from vitkit.progress import PrintLine, show_progress
from vitkit.report.card import write_card
from vitkit.report.page import write_report
from vitkit.report.usage import shell_commands
from vitkit.run_folder import EVALUATION, RunError, RunFolder
from vitkit.run_warnings import leak_warning
from vitkit.text import counted, duration, utc_timestamp
from vitkit.weights.load import load
from vitkit.weights.save import save


def finish_run(
    config: Fit, data: Data, splits: Partition, folder: RunFolder, print_line: PrintLine, kept: KeptInputs
) -> None:
    """Score the model on the test split and write the report; `kept` may have the inputs on the device already."""
    try:
        _score_and_report(config, data, splits, folder, print_line, partial(collect_logits, kept=kept))
    except KeyboardInterrupt:
        raise Interrupted(
            f"trained but not scored; vitkit resume {shlex.quote(str(folder.path))} finishes the run", 130
        ) from None


def _score_and_report(
    config: Fit, data: Data, splits: Partition, folder: RunFolder, print_line: PrintLine, collect: CollectLogits
) -> None:
    began, device = time.monotonic(), pick_device(config.device)
    model = load(folder.path).to(device)
    if data.multilabel and config.objective == "labels":
        _choose_thresholds(model, config, splits, folder, print_line)
    if splits.test is not None:
        scored = replace(data, splits={splits.test_name: splits.test})
        try:
            evaluation = _evaluate(model, config, scored, splits.test_name, device, collect)
        except DataError as error:  # no image could be decoded, or masks ignore every pixel
            error.add(kept=f"the trained model, in {folder.path}")
            raise
        write_text(folder.path / EVALUATION, evaluation.to_json() + "\n", RunError)
        print_line("score", _describe_score(evaluation) + _describe_unseen(config, data, splits.test, evaluation))
        if isinstance(evaluation, Evaluation):
            counts = dict(zip(data.classes, splits.train.per_class(len(data.classes)).tolist(), strict=True))
            folder.add_to_record(trained_counts=counts)
            if warning := recall_warning(evaluation, counts, config.balance):
                print_line("warning", warning)
    folder.add_to_record(finished=utc_timestamp())
    split = splits.train if splits.test is None else splits.test
    if isinstance(model, Segmenter):
        compute = compute_mask_of(model, device, "fp32")
        report = write_report(folder.path, split, predict_mask=lambda pixels: compute(pixels).mask)
    else:
        report = write_report(folder.path, split, rollout_overlays(model, split))
    write_card(folder.path)
    print_line(
        "took",
        f"{duration(folder.record()['seconds'])} to train, {duration(time.monotonic() - began)} to score and report",
    )
    print_line("report", str(report))
    segments = config.segments
    commands = shell_commands(folder.path, classifies=config.labelled, masks=segments)[:4]  # the report has all of them
    if "head" in folder.record():
        purpose = f"fine-tune all weights, about {duration(folder.record()['fine_tuning_seconds'])} here"
        run, full = shlex.quote(str(folder.path)), shlex.quote(f"{folder.path}-full")
        commands.insert(0, (purpose, f"vitkit fit --config {run} --set start=full --out {full}"))
    column = max(len(command) for _, command in commands)
    for number, (purpose, command) in enumerate(commands):
        print_line("" if number else "next", f"{command:<{column}}  # {purpose}")


def _evaluate(
    model: Model, config: Fit, data: Data, split: str, device: torch.device, collect: CollectLogits
) -> Evaluation | SegmentationEvaluation:
    """Score the model; the report lists images that failed to decode: hours of training are not lost over them."""
    workers = pick_workers(config.workers, device, 1)
    if isinstance(model, Segmenter):
        return evaluate_masks(
            model, data, split, device=device, max_failed=1.0, workers=workers, progress=show_progress
        )
    return evaluate(
        model,
        data,
        split,
        device=device,
        max_failed=1.0,
        workers=workers,
        collect=collect,
        progress=show_progress,
    )


def _choose_thresholds(model: Model, config: Fit, splits: Partition, folder: RunFolder, print_line: PrintLine) -> None:
    """Choose the thresholds of a multi-label model on validation images, and save them with its weights."""
    split = splits.to_choose_by
    if split is None or not len(split):
        text = "0.5 for each class: there are no validation images to choose by; --set dev=0.1 holds some out"
    else:
        device = pick_device(config.device)
        result = collect_logits(
            model,
            split,
            device=device,
            max_failed=1.0,
            workers=pick_workers(config.workers, device, 1),
            progress=show_progress,
        )
        assert isinstance(result.labels, SparseLabels)
        chosen = choose_thresholds(result.logits.sigmoid().numpy(), result.labels)
        provenance = {**model.metadata.provenance, "thresholds": [round(value, 6) for value in chosen.values]}
        model.metadata = replace(model.metadata, provenance=provenance)
        saved = load(folder.path)  # on the CPU
        saved.metadata = model.metadata
        save(saved, folder.path)
        text = str(chosen)
    folder.add_to_record(thresholds=text)
    print_line("threshold", text)


def _describe_score(evaluation: Evaluation | SegmentationEvaluation) -> str:
    best = evaluation.headline
    if isinstance(evaluation, SegmentationEvaluation):
        pixels = evaluation.pixel_accuracy
        return (
            f"{best.value:.2%} mean IoU ({best.low:.1%} to {best.high:.1%}); {pixels.value:.1%} of the pixels, on "
            f"{counted(evaluation.images, 'image')}"
        )
    name = "mean average precision" if evaluation.multilabel else "top-1"
    macro = f"; macro-F1 {evaluation.macro_f1.value:.1%}" if evaluation.macro_f1 else ""
    return (
        f"{best.value:.2%} {name} ({best.low:.1%} to {best.high:.1%}){macro} on {counted(evaluation.images, 'image')}"
    )


def _describe_unseen(config: Fit, data: Data, test: Split, evaluation: Evaluation | SegmentationEvaluation) -> str:
    """Return the end of the score line: what is known about the images that were scored."""
    if evaluation.leaked is not None:
        return f", of which {evaluation.leaked.sentence()}"
    if leak_warning(config, data):
        return ""
    compared = test.leaked is not None
    return " not used in training" if compared else "; copies of training images may be among them"

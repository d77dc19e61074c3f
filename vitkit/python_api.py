"""The verbs in Python: `vitkit.fit`, `vitkit.check`, and `vitkit.Run`, whose methods are what a trained model can do.

The command line calls the same methods, so both have the same defaults and results. A method imports what only it
uses: `evaluate` need not wait for the packages that train, draw or export.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.compute.embedding_model import EmbeddingPool
from vitkit.compute.features import FeatureExtractor, write_features
from vitkit.compute.inference import Precision, check_precision
from vitkit.data.check import DataReport
from vitkit.data.check import check as check_data
from vitkit.data.contact_sheet import check_sheet_path, contact_sheet, save_sheet
from vitkit.data.groups import keep_together
from vitkit.data.sources.hub import PREFIX
from vitkit.data.sources.open import open_data
from vitkit.devices import cores, pick_device, pick_workers
from vitkit.errors import ConfigError, did_you_mean
from vitkit.evaluate.matching import class_names
from vitkit.model.build import Model
from vitkit.model.config import parse_size
from vitkit.model.options import check_count
from vitkit.model.segmenter import Segmenter
from vitkit.predict.classifier import Classifier
from vitkit.predict.embedder import Embedder
from vitkit.predict.image_stream import workers_for
from vitkit.predict.inputs import ImageInput, expand
from vitkit.predict.prediction import Prediction
from vitkit.predict.samples import find_samples
from vitkit.predict.segmentation import ImageSegmenter, SegmentedImage
from vitkit.predict.stream import predict_files
from vitkit.progress import Progress, no_progress, show_progress
from vitkit.run_record import RunRecord, describe_config
from vitkit.storage.urls import is_url, normalised, redacted
from vitkit.weights.load import load

if TYPE_CHECKING:
    from vitkit.evaluate.evaluation import Evaluation
    from vitkit.evaluate.probe import ProbeResult
    from vitkit.evaluate.segmentation_evaluation import SegmentationEvaluation
    from vitkit.export.trace import ExportInput
    from vitkit.export.write import Export, Format
    from vitkit.inspect.inspection_page import InspectionPage
    from vitkit.inspect.query_token import Token

OVERRIDES = ("resize", "crop", "interpolation", "mean", "std")  # of a model's preprocessing

PathOrName = str | os.PathLike[str]

log = logging.getLogger("vitkit")


def fit(data: PathOrName, *, resume: bool = False, **settings: Any) -> Run:
    """Train as `vitkit fit` does, print what was decided, and return the run.

    `resume` continues the run in the folder `out`, if it has these settings, and starts it if there is none.
    The settings have the names of config.toml, tables as dictionaries: weights="none", epochs=5, out="runs/photos",
    augment={"mixup": 0.2}.
    """
    from vitkit.run import start_run

    explicit = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in settings.items()}
    arguments = ", ".join([repr(os.fspath(data)), *(f"{name}={value!r}" for name, value in explicit.items())])
    settings = {**explicit, "data": os.fspath(data)}
    path = start_run(settings, explicit, sys.stdout, f"vitkit.fit({arguments})", resume=resume)
    return Run(path, device=settings.get("device") or "auto")


def check(
    data: PathOrName,
    *,
    label: str | None = None,
    task: Literal["auto", "classify", "segment"] = "auto",
    channels: int = 3,
    sheet: PathOrName | None = None,
    image: int | tuple[int, int] = 224,
    resize: Literal["crop", "squash", "letterbox"] = "crop",
    workers: int = 4,
    progress: Progress | None = None,
) -> DataReport:
    """Decode all images once, as `vitkit check` does, and return what would hurt training: `.ok`, `.problems`, ….

    label        the column that holds the classes, in a manifest or hf: set
    task         "auto" is "segment" where the data have masks, otherwise "classify"
    channels     3 is RGB, 1 grey, other numbers the bands of .npy or TIFF files
    sheet        draw the model's input, class by class, into this image file; `image` and `resize` are for it
    """
    check_count("channels", channels, least=1)
    check_count("workers", workers, least=1)
    size = parse_size(image)
    if sheet is not None:
        check_sheet_path(Path(sheet))
    opened = open_data(data, label=label, task=task)
    report = check_data(opened, channels=channels, workers=workers, progress=progress or _progress_on_terminals())
    if sheet is not None:
        save_sheet(contact_sheet(opened, size, resize, channels), Path(sheet))
    return report


class Run(RunRecord):
    """A trained model with its record; its methods are the verbs, and their options have the same names.

    source          a run folder, a weights file, hf:OWNER/NAME, or ti16, the weights inside the package
    image           another size than the model's own; positions are resized
    preprocessing   values instead of the weights' own, such as {"crop": 0.9}; others: resize, interpolation, mean, std
    device          "auto", "cpu", "cuda", "cuda:1" …
    labels          class names in the order of the logits, or a file of them, for weights that carry none
    progress        how to show the progress of long work; default: a bar on a terminal, nothing elsewhere
    log             a function of a label and a text, called when slow work begins

    A run stands for its path wherever one is expected: `vitkit.load(run)`, `vitkit.fit(data, weights=run)`.
    """

    def __init__(
        self,
        source: PathOrName,
        *,
        image: int | tuple[int, int] | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        device: str = "auto",
        labels: Sequence[str] | PathOrName | None = None,
        progress: Progress | None = None,
        log: Callable[[str, str], None] = lambda label, text: None,
    ):
        super().__init__(os.fspath(source))
        self.device = pick_device(device)
        self._image, self._labels, self._log = image, labels, log
        self._preprocessing = _check_overrides(preprocessing or {})
        self._progress = progress or _progress_on_terminals()
        if not self.source.startswith(PREFIX) and not is_url(self.source) and not self.path.exists():
            _ = self.model  # a name that vitkit knows, or the error that suggests the nearest one

    @cached_property
    def model(self) -> Model:
        """The model, loaded when it is first needed; of an incomplete run, its latest checkpoint."""
        model = load(self.source, image=self._image).to(self.device)
        preprocessing = model.metadata.preprocessing.override(**self._preprocessing, channels=model.config.channels)
        model.metadata = replace(model.metadata, preprocessing=preprocessing)
        if self._labels is not None:
            model.metadata = replace(model.metadata, labels=class_names(self._labels, model.config.classes))
        return model

    @cached_property
    def classifier(self) -> Classifier:
        return Classifier(self.model)

    @cached_property
    def fast_classifier(self) -> Classifier:
        """The classifier with the fastest engine of this machine, compared on the run's own images where they exist."""
        classifier = Classifier(self.model)
        classifier.use_fast_engine(find_samples(self.source, self.model))
        return classifier

    @cached_property
    def segmenter(self) -> ImageSegmenter:
        """The model as a function of images to masks, if it was trained on masks."""
        return ImageSegmenter(self.model)

    def __repr__(self) -> str:
        described = self.describe()
        if not described and "model" in self.__dict__:
            described = [describe_config(self.model.config)]
        return f"Run({', '.join([repr(redacted(self.source)), *described])})"

    @property
    def labels(self) -> tuple[str, ...]:
        """The class names in the order of the logits; numbers where the weights carry no names."""
        return self.model.metadata.labels or tuple(map(str, range(self.model.config.classes)))

    def evaluate(
        self,
        data: PathOrName,
        *,
        split: str | None = None,
        label: str | None = None,
        real: PathOrName | None = None,
        map: PathOrName | None = None,
        precision: Precision = "fp32",
        batch: int | None = None,
        workers: int | None = None,
        max_failed: float = 0.01,
        engine: Literal["local", "ray"] = "local",
    ) -> Evaluation | SegmentationEvaluation:
        """Score the model on data: `.top1.value` with `.low` and `.high`, `.per_class`, `.confusion`, `.mistakes`, ….

        A model that segments is scored on data with masks: `.mean_iou`, `.pixel_accuracy`, `.per_class`, ….
        Where the run held images of these data out of training, it scores those. `real` is ImageNet-ReaL's real.json;
        `map` is a JSON or CSV file of the model classes that each class of the data stands for, as for ObjectNet. The
        engine "ray" computes the logits on the cluster of RAY_ADDRESS, or on a local one.
        """
        from vitkit.run_evaluation import evaluate_run

        _check_counts(batch=batch, workers=workers)
        return evaluate_run(
            self.model,
            self.source,
            data,
            device=self.device,
            split=split,
            label=label,
            real=real,
            class_map=map,
            precision=precision,
            batch=batch,
            workers=workers,
            max_failed=max_failed,
            engine=engine,
            progress=self._progress,
        )

    def predict(
        self, images: ImageInput | Iterable[ImageInput], *, fast: bool = False, workers: int | None = None
    ) -> list[Prediction] | list[SegmentedImage]:
        """Return a prediction for each image, in their order: `.label`, `.probability`, `.top(5)`, or an `.error`.

        A model that segments returns `.mask`, `.shares` and `.save(path)` for each. The images are paths, folders,
        patterns such as "new/*.jpg", bytes, open files, PIL images or arrays.
        """
        _check_counts(workers=workers)
        if isinstance(self.model, Segmenter):
            if fast:
                raise ConfigError(f"fast engines are for classifiers, and {redacted(self.source)} segments images")
            return self.segmenter(expand(images))
        inputs, classifier = expand(images), self.fast_classifier if fast else self.classifier
        paths = [normalised(image) for image in inputs if isinstance(image, str | os.PathLike)]
        if len(paths) < len(inputs):
            return classifier(inputs)
        workers = workers_for(len(paths), workers, self.device)
        return [*predict_files(classifier, paths, workers=workers, progress=self._progress)]

    def embed(
        self,
        images: ImageInput | Iterable[ImageInput],
        *,
        pool: EmbeddingPool = "representation",
        normalise: bool = False,
        precision: Precision = "fp32",
        batch: int | None = None,
        workers: int | None = None,
    ) -> NDArray[np.float32]:
        """Return a vector for each image, (images, width), for scikit-learn, search or a plot.

        `pool` is "representation", what the logits are computed from, which `probe` uses; "token", the class token;
        "gap", the mean of the patch tokens; "token-gap", both. `normalise` divides each vector by its L2 norm. An
        unreadable image is an error.
        """
        _check_counts(batch=batch, workers=workers)
        embedder = Embedder(self.model, pool=pool, normalise=normalise, precision=precision, batch=batch)
        return embedder(images, workers=workers, progress=self._progress)

    def probe(
        self,
        data: PathOrName,
        method: Literal["fewshot", "knn", "linear"] = "knn",
        *,
        shots: Sequence[int] | None = None,
        seeds: int | None = None,
        neighbours: int | None = None,
        layers: Literal["all"] | Sequence[int] | None = None,
        label: str | None = None,
        features: PathOrName | None = None,
        precision: Precision = "fp32",
        batch: int | None = None,
        workers: int | None = None,
        max_failed: float = 0.01,
    ) -> ProbeResult:
        """Score the frozen features on labelled data, whose classes may be new to the model: `.top1`, or `.shots`.

        `features` is an .npz file to write features, labels, keys and class names to. With `layers`, "all" or their
        numbers from 0, each of them is probed, and `.layers` has their scores; the result itself is of the best.
        """
        from vitkit.evaluate.layer_probe import choose_layers, probe_layers
        from vitkit.evaluate.probe import extract_features, held_out_as_test, pick_method, probe

        _check_counts(batch=batch, workers=workers)
        options = pick_method(method, shots=shots and tuple(shots), seeds=seeds, neighbours=neighbours)
        probed = choose_layers(self.model, layers, options)
        kept = keep_together(
            held_out_as_test(self.source, open_data(data, label=label)), workers=cores(), progress=self._progress
        )
        opened = kept.data
        for name, text in kept.lines:
            if name == "warning":
                log.warning(text)
        check_precision(self.model, self.device, precision)
        extract = FeatureExtractor(
            model=self.model,
            device=self.device,
            precision=precision,
            layers=probed,
            batch=batch,
            workers=pick_workers(workers, self.device, 1),
            max_failed=max_failed,
            progress=self._progress,
        )
        extracted = extract_features(extract, opened, options)
        if features is not None:
            write_features(Path(features), extracted.by_name(), opened.classes)
        return probe_layers(extracted, opened, options, probed) if probed else probe(extracted, opened, options)

    def inspect(
        self,
        images: PathOrName | Sequence[PathOrName],
        out: PathOrName | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tokens: Sequence[Token] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> InspectionPage:
        """Write a page with attention, rollout, relevance, distance and filters; `.path` is the page.

        The folder `out` is by default inspect/ in the run folder, or here for other weights. `.record()` holds the
        figures as numbers, `.inspection` the maps as arrays. An iGPT completes the lower half of images; `sampling`
        may have `samples` of each, `temperature`, `top_k` and `seed`.
        """
        from vitkit.inspect.completions import Sampling
        from vitkit.inspect.inspection_page import inspect_images

        sources = [images] if isinstance(images, str | os.PathLike) else [*images]
        return inspect_images(
            lambda: self.model,
            sources,
            redacted(self.source),
            None if out is None else Path(out),
            layers=layers,
            heads=heads,
            tokens=tokens,
            sampling=None if sampling is None else Sampling(**sampling),
            log=self._log,
        )

    def export(
        self,
        path: PathOrName | None = None,
        *,
        to: Format | None = None,
        input: ExportInput = "uint8",
        int8: bool = False,
        max_drop: float | None = None,
        data: str | None = None,
        images: int | None = None,
        overwrite: bool = False,
    ) -> Export:
        """Write the model as one file for other runtimes and compare it with the original: `.path`, `.comparison`.

        The file takes raw images and gives probabilities, or of a model that segments masks at the images' own size.
        The format is that of the file's name, .onnx or .pt2. Without a name, the file is model.onnx in the run folder,
        or here for other weights.
        """
        from vitkit.export.target import check_int8_options, pick_target
        from vitkit.export.write import MAX_DROP, SCORED, export, export_int8
        from vitkit.predict.segmentation import ImageSegmenter

        check_int8_options(int8, max_drop, images)
        target, format = pick_target(self.source, path, to, int8=int8, overwrite=overwrite)
        predictor = (
            ImageSegmenter(self.model, device="cpu")
            if isinstance(self.model, Segmenter)
            else Classifier(self.model, device="cpu")
        )
        samples = find_samples(self.source, predictor.model, data)
        self._log("exporting", f"{redacted(self.source)} to {target}; tracing takes up to a minute")
        if int8:
            return export_int8(
                predictor,
                target,
                input=input,
                samples=samples,
                overwrite=overwrite,
                progress=self._progress,
                max_images=SCORED if images is None else images,
                max_drop=MAX_DROP if max_drop is None else max_drop,
            )
        return export(
            predictor,
            target,
            to=format,
            input=input,
            samples=samples,
            overwrite=overwrite,
            progress=self._progress,
        )

    def resume(self, *, device: str | None = None, workers: int | None = None) -> Run:
        """Continue a run that was stopped from its last checkpoint, to the same result as if it had not stopped.

        Of a finished run, nothing is left to do.
        """
        from vitkit.run import resume

        resume(self.path, sys.stdout, device=device, workers=workers)
        for name in ("model", "classifier", "fast_classifier", "segmenter"):
            self.__dict__.pop(name, None)  # they are those of the checkpoint
        return self


def _check_overrides(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as `Preprocessing.override` takes them; an unknown name is an error that suggests one."""
    for name in preprocessing.keys() - set(OVERRIDES):
        raise ConfigError(f"preprocessing has no {name!r}{did_you_mean(name, OVERRIDES)}", known=", ".join(OVERRIDES))
    numbers = {name: (value,) if isinstance(value, int | float) else value for name, value in preprocessing.items()}
    return {
        name: tuple(numbers[name]) if name in ("mean", "std") and numbers[name] is not None else value
        for name, value in preprocessing.items()
    }


def _check_counts(*, batch: int | None = None, workers: int | None = None) -> None:
    if batch is not None:
        check_count("batch", batch, least=1)
    if workers is not None:
        check_count("workers", workers, least=0)


def _progress_on_terminals() -> Progress:
    """Return a bar for a terminal; a notebook or a script is not filled with lines that nobody asked for."""
    return show_progress if sys.stderr.isatty() else no_progress

"""Warnings before a run trains: few images from scratch, rare or odd labels, test images that the weights saw."""

from dataclasses import replace

from vitkit.config.recipes import RECIPES
from vitkit.config.schema import Fit
from vitkit.data.label_check import label_warnings
from vitkit.data.partition import is_held_out, partition
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.splits import training_split
from vitkit.devices import pick_device
from vitkit.progress import PrintLine
from vitkit.run_folder import RunFolder

MIN_IMAGES_FROM_SCRATCH = 100_000  # fewer are worth a warning
PRIORS = {
    "balanced": "probabilities assume the weighted classes of balance, not the data's shares: those of rare classes "
    "may be too high. --set priors=data corrects that, and finds fewer of the rare ones",
    "data": "probabilities are corrected to the data's own shares when training ends; --set priors=balanced finds more "
    "of the rare classes",
}


def log_warnings(config: Fit, data: Data, log: PrintLine) -> None:
    """Log what the settings and the data together make doubtful, before any time is spent."""
    trained = _with_subset(config, data)
    images = len(trained.splits[training_split(data)])
    if config.weights == "none" and config.labelled and images < MIN_IMAGES_FROM_SCRATCH:
        figures = ". On the 3,680 of Pets, Ti/16 reached 11.8 % from scratch and 91.3 % from pre-trained weights"
        log(
            "warning",
            f"{images:,} images are few to train from scratch{figures * (config.objective == 'labels')}: "
            "--weights hf:… or PATH",
        )
    slow = pick_device(config.device).type == "cpu" and config.start == "full" and _leaves_start_open(config)
    if slow and config.weights != "none":
        log(
            "note",
            "all weights are trained, which is slow on a CPU; --set start=head trains the head alone, in seconds",
        )
    for warning in label_warnings(trained, balance=config.balance) if config.objective == "labels" else ():
        log("warning", warning)
    if config.labelled and config.balance:
        log("priors", PRIORS[config.priors])
    if config.labelled and (warning := leak_warning(config, data)):
        log("warning", warning)


def _with_subset(config: Fit, data: Data) -> Data:
    """Return the data with the subset of the training images that the run uses, if it does."""
    if config.subset is None and config.subset_per_class is None and config.subset_images is None:
        return data
    return replace(data, splits={**data.splits, training_split(data): partition(data, **config.partition).train})


def _leaves_start_open(config: Fit) -> bool:
    return config.recipe in RECIPES and RECIPES[config.recipe]().start == "auto"


def leak_warning(config: Fit, data: Data) -> str:
    """Return a warning where the weights come from a run that trained on images of the test split, else ""."""
    held_out, run = partition(data, **config.partition).held_out, RunFolder.from_weights(config.weights)
    if held_out is None or run is None:
        return ""
    record = run.record()
    if record.get("settings", {}).get("data") != config.data:
        return ""
    if (before := record.get("split")) is not None and is_held_out(before, data, held_out):
        return ""
    note = "" if record.get("objective") == "labels" else ", though without labels"
    return f"{config.weights} was trained on these data{note}, test images included: the score may be too high"

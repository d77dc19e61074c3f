"""Predict the classes of images in a Ray Data pipeline, with any source before the model and any sink after it.

    python examples/cluster/ray_predict.py runs/pets 'photos/**/*.jpg' answers/
    ray job submit --working-dir . -- python examples/cluster/ray_predict.py runs/pets 's3://bucket/photos' s3://bucket/answers

RAY_ADDRESS names the cluster; without it, Ray starts on this machine. `vitkit predict … --engine ray` does more: it
continues after a kill, and has exactly one row for each image. This is for pipelines of your own.
"""

from __future__ import annotations

import glob
import sys

import ray

from vitkit.predict.ray import Predictor


def predict(run: str, pattern: str, out: str) -> None:
    """Write a Parquet dataset of answers, with a row for each image."""
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if "://" in pattern:  # Ray reads the bytes; images that vitkit cannot decode are rows with an error
        images = ray.data.read_binary_files(pattern, include_paths=True)
    else:
        images = ray.data.from_items([{"path": path} for path in sorted(glob.glob(pattern, recursive=True))])
    answers = images.map_batches(
        Predictor,
        fn_constructor_args=(run,),
        fn_constructor_kwargs={"top": 3},
        batch_size=256 if gpus else 64,
        concurrency=(1, gpus or 4),  # actors, each with a model
        num_gpus=1 if gpus else None,
        num_cpus=None if gpus else 1,
    )
    # the encoded images are not written again
    answers.select_columns(["path", "error", "label", "probability", "labels", "probabilities"]).write_parquet(out)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ray.init()
    predict(*sys.argv[1:])

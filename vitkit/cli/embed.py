"""The verb `embed`: write the features of images."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Literal

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
from vitkit.cli.preprocessing_options import NO_OVERRIDES, Overrides
from vitkit.errors import ConfigError

log = logging.getLogger("vitkit")


def embed(
    run: options.Run,
    images: Images,
    out: Annotated[
        str,
        options.option(
            "the file or URL to write, with the names of a .npy in .images.jsonl beside it, or a folder for part "
            "files; after a stop, the same command continues",
            "FILE.parquet|.npy|FOLDER",
        ),
    ],
    pool: Annotated[
        Literal["representation", "token", "gap", "token-gap"],
        arg(
            help="what the vector is: the representation, which the logits are computed from; the class token; the "
            "mean of the patch tokens; or both, the class token first"
        ),
    ] = "representation",
    normalise: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, arg(help="divide each vector by its L2 norm; a product is then a cosine")
    ] = False,
    shard: Shard = None,
    engine: Engine = "local",
    overwrite: Overwrite = False,
    image: options.ImageSize = None,
    preprocessing: Overrides = NO_OVERRIDES,
    precision: options.InferencePrecision = "fp32",
    fast: Fast = False,
    device: options.Device = "auto",
    workers: options.Workers = None,
    max_failed: options.MaxFailed = 0.01,
    json: options.Json = False,
) -> None:
    """Write the features of images to a file, for search, clustering and de-duplication.

    vitkit embed ti16 photos/ --out vectors.parquet        vitkit embed ti16 photos/ --out vectors.npy --normalise

    Every image has its row; a missing or unreadable one has the reason and no vector (in a .npy, a row of nan). The
    exit code is 0, or 3 if more images failed than --max-failed allows: by default 1 % of them, or one of a few.
    """
    options.at_least(0, workers=workers)
    options.check_max_failed(max_failed)
    if fast and precision != "fp32":
        raise ConfigError(
            "--fast chooses the precision itself", try_=f"--precision {precision}, or --fast, without the other"
        )
    size = None if image is None else options.image_size(image)
    preprocessing.check()
    check_engine(engine, shard=shard, fast=fast, device=device, workers=workers)
    own = chosen_shard(shard, out) if engine == "local" else None

    from vitkit.devices import pick_device
    from vitkit.predict.embedder import Embedder
    from vitkit.predict.embedding_file import check_vectors_path, embed_into
    from vitkit.predict.image_stream import workers_for
    from vitkit.progress import show_progress
    from vitkit.weights.load import load

    check_vectors_path(out)
    if engine == "ray":
        from vitkit.predict.ray_jobs import embed_on_ray

        with resumable(out, None, overwrite=overwrite):
            before, failures = embed_on_ray(
                out,
                run,
                images,
                image=size,
                preprocessing=preprocessing.apply,
                pool=pool,
                normalise=normalise,
                precision=precision,
                overwrite=overwrite,
                progress=show_progress,
            )
        print_written("embed", out, None, before, failures, json=json, note="")
        report_failures("embed", failures, max_failed)
        return
    split = list_images(images)
    model = load(run, image=size)
    preprocessing.apply(model)
    embedder = Embedder(model.to(pick_device(device)), pool=pool, normalise=normalise, precision=precision)
    messages.say("input", embedder.transform.description, file=sys.stderr)
    workers = workers_for(len(split), workers, embedder.device)
    if fast and fast_engine_pays(embedder.device, len(split)):
        from vitkit.predict.samples import Samples  # opens data of all kinds, for --fast only

        embedder.use_fast_engine(Samples("of those asked about", split, model.config.channels))
        messages.say("engine", embedder.engine.description, file=sys.stderr)
    log.info("%s images, in batches of %d, %d data workers", f"{len(split):,}", embedder.engine.batch, workers)
    log.info("engine: %s", embedder.engine.description)
    with resumable(out, own, overwrite=overwrite):
        before, failures = embed_into(
            out,
            embedder,
            split,
            workers=workers,
            overwrite=overwrite,
            source=run,
            shard=own,
            progress=show_progress,
        )
    note = f", {embedder.width:,} numbers each"
    print_written("embed", out, own, before, failures, json=json, note=note)
    report_failures("embed", failures, max_failed)

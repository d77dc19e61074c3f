"""Every JSON and TOML that vitkit reads back, of its own and of other libraries: its content, or an error of ours."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitkit
from tests.damaged_json import NO_OBJECTS, damaged_text
from vitkit.data.image_info import ImageInfo, ImageInfoCache
from vitkit.data.shard_writer import write_shards
from vitkit.data.sources.open import open_data
from vitkit.errors import VitkitError
from vitkit.evaluate.class_map import read_class_map
from vitkit.evaluate.imagenet_real import read_real
from vitkit.export.metadata import build_metadata, read_metadata, transform_of
from vitkit.export.pt2 import refuse_pickles
from vitkit.export.usage import usage
from vitkit.predict.classifier import Classifier
from vitkit.predict.stream import predict_into
from vitkit.train.checkpoint import intact_checkpoint
from vitkit.train.distributed import Processes
from vitkit.weights.run_checkpoints import load_incomplete_run, stored_shapes

ANTS = [Path(f"photos/ant/{number}.png") for number in range(4)]
MOST_MEMORY = 512 << 20  # bytes; each of these files has a few kilobytes, but the first to be read imports its reader


@dataclass(frozen=True)
class Document:
    """A file that is read back: how to take its JSON out of a good copy, to put other bytes in, and to read it."""

    content: Callable[[Path], Any]
    replace: Callable[[Path, bytes], None]
    read: Callable[[Path], object]


def plain(name: str, read: Callable[[Path], object]) -> Document:
    """Return the document of a file that is JSON and nothing else."""
    return Document(
        lambda folder: json.loads((folder / name).read_bytes()),
        lambda folder, text: void((folder / name).write_bytes(text)),
        read,
    )


def void(value: object) -> None:
    pass


def good_lines(path: Path) -> list[bytes]:
    """Return the lines that a file had when it was first asked for; reading a journal changes or removes it."""
    original = path.with_name(f"{path.name}.good")
    if not original.exists():
        shutil.copy(path, original)
    return original.read_bytes().splitlines(keepends=True)


def lines(name: str, read: Callable[[Path], object]) -> Document:
    """Return the document of a file of JSON lines, of which the last is damaged and a good one follows."""

    def replace(folder: Path, text: bytes) -> None:
        before = good_lines(folder / name)
        (folder / name).write_bytes(b"".join([*before[:-1], text, b"\n", before[-1]]))

    return Document(lambda folder: json.loads((folder / name).read_bytes().splitlines()[-1]), replace, read)


def replace_header(folder: Path, text: bytes) -> None:
    """Put the text under "vitkit" in the metadata of a safetensors file."""
    path = folder / "model.safetensors"
    (folder / "model.json").unlink(missing_ok=True)
    save_file(load_file(path), path, metadata={"format": "pt", "vitkit": text.decode("latin-1")})


def header(folder: Path) -> Any:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return json.loads(file.metadata()["vitkit"])


def replace_raw_header(path: Path, text: bytes) -> None:
    """Put the text in place of the whole header of a safetensors file, with its length before it."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def raw_header(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def shard_of(folder: Path) -> Path:
    (shard,) = (folder / "checkpoints/step-00000004").glob("*.safetensors")
    return shard


def replace_shard_header(folder: Path, text: bytes) -> None:
    """Damage a checkpoint as one of an earlier version, which has no checksums that would tell."""
    record = folder / "checkpoints/step-00000004/record.json"
    kept = {key: value for key, value in json.loads(record.read_text()).items() if key not in ("files", "crc32")}
    record.write_text(json.dumps(kept))
    replace_raw_header(shard_of(folder), text)


def read_checkpoint(folder: Path) -> None:
    checkpoint, _ = intact_checkpoint(folder / "checkpoints", Processes(torch.device("cpu")))
    stored_shapes(checkpoint)
    load_incomplete_run(checkpoint)


def replace_onnx(folder: Path, text: bytes) -> None:
    model = onnx.load(folder / "model.onnx")
    model.metadata_props[0].value = text.decode("latin-1")
    onnx.save(model, folder / "model.onnx")


def replace_pt2(folder: Path, text: bytes) -> None:
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/extra/vitkit.json", text)


def read_exported(path: Path) -> None:
    metadata = read_metadata(path)
    usage(path, metadata)
    transform_of(metadata)


def replace_sidecar(folder: Path, text: bytes) -> None:
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    with tarfile.open(folder / "plain.tar", "w") as tar:
        for name, content in (("0.png", image.getvalue()), ("0.json", text), ("1.png", image.getvalue())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def continue_journal(folder: Path) -> None:
    out = folder / "rows.jsonl"
    out.unlink(missing_ok=True)
    with contextlib.chdir(folder):
        predict_into(out, Classifier("."), ANTS, top=2)
    assert len(out.read_text().splitlines()) == len(ANTS)


def replace_journal_header(folder: Path, text: bytes) -> None:
    _, *rows = good_lines(folder / "rows.jsonl.part")
    (folder / "rows.jsonl.part").write_bytes(b"".join([text, b"\n", *rows]))


def replace_tensors_config(folder: Path, text: bytes) -> None:
    with zipfile.ZipFile(folder / "program.pt2", "w") as archive:
        archive.writestr("model/data/weights/model_weights_config.json", text)


def cached_record(folder: Path) -> Any:
    with contextlib.closing(sqlite3.connect(folder / "facts.sqlite")) as table:
        return json.loads(table.execute("SELECT record FROM facts").fetchone()[0])


def replace_cached_record(folder: Path, text: bytes) -> None:
    with contextlib.closing(sqlite3.connect(folder / "facts.sqlite")) as table, table:
        table.execute("UPDATE facts SET record = ?", (text,))


def read_cached_record(folder: Path) -> None:
    content = (folder / ANTS[0]).read_bytes()
    assert isinstance(ImageInfoCache(folder / "facts.sqlite").lookup(content, 3), ImageInfo)


DOCUMENTS = {
    "model.json": plain("model.json", vitkit.load),
    "metadata of model.safetensors": Document(header, replace_header, vitkit.load),
    "header of model.safetensors": Document(
        lambda folder: raw_header(folder / "model.safetensors"),
        lambda folder, text: replace_raw_header(folder / "model.safetensors", text),
        vitkit.load,
    ),
    "header of a checkpoint's shard": Document(
        lambda folder: raw_header(shard_of(folder)), replace_shard_header, read_checkpoint
    ),
    "config.json of transformers": plain("hf/config.json", lambda folder: vitkit.load(folder / "hf")),
    "preprocessor_config.json": plain("hf/preprocessor_config.json", lambda folder: vitkit.load(folder / "hf")),
    "preprocessor_config.json of another library": plain(
        "foreign/preprocessor_config.json", lambda folder: vitkit.load(folder / "foreign")
    ),
    "model.safetensors.index.json": plain(
        "parts/model.safetensors.index.json", lambda folder: vitkit.load(folder / "parts")
    ),
    "config.json of timm": plain("timm/config.json", lambda folder: vitkit.load(folder / "timm")),
    "index.json of shards": plain("shards/index.json", lambda folder: open_data(folder / "shards")),
    "a label in a tar file": Document(
        lambda folder: {"label": "ant", "cls": 3}, replace_sidecar, lambda folder: open_data(folder / "plain.tar")
    ),
    "a manifest": lines("images.jsonl", lambda folder: open_data(folder / "images.jsonl")),
    "metadata of an ONNX file": Document(
        lambda folder: json.loads(onnx.load(folder / "model.onnx").metadata_props[0].value),
        replace_onnx,
        lambda folder: read_exported(folder / "model.onnx"),
    ),
    "metadata of a pt2 file": Document(
        lambda folder: json.loads(onnx.load(folder / "model.onnx").metadata_props[0].value),
        replace_pt2,
        lambda folder: read_exported(folder / "model.pt2"),
    ),
    "real.json": plain("real.json", lambda folder: read_real(folder / "real.json", imagenet())),
    "rows of a journal": lines("rows.jsonl.part", continue_journal),
    "header of a journal": Document(
        lambda folder: json.loads((folder / "rows.jsonl.part").read_bytes().splitlines()[0]),
        replace_journal_header,
        continue_journal,
    ),
    "a map of classes": plain("map.json", lambda folder: read_class_map(folder / "map.json")),
    "a tensor's description in a pt2 file": Document(
        lambda folder: {"config": {"head": {"path_name": "weight_0", "use_pickle": False}}},
        replace_tensors_config,
        lambda folder: refuse_pickles(folder / "program.pt2"),
    ),
    "a cached fact": Document(cached_record, replace_cached_record, read_cached_record),
}


def imagenet() -> Any:
    model = vitkit.create("mu/4", classes=1000, image=16)
    model.metadata = model.metadata.__class__(labels=None, preprocessing=model.metadata.preprocessing)
    return model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a good copy of every document."""
    folder = tmp_path_factory.mktemp("good")
    noise = np.random.default_rng(0)
    for name in ("ant", "bee", "cow"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(noise.integers(0, 256, (16, 16, 3), np.uint8)).save(
                folder / "photos" / name / f"{number}.png"
            )
    settings = {"steps": 4, "save_every": 2, "batch": 6, "workers": 0}
    run = vitkit.fit(folder / "photos", out=folder / "run", model="mu/4", weights="none", image=16, **settings)
    for path in run.path.iterdir():
        shutil.move(path, folder / path.name)
    model = vitkit.load(folder)
    vitkit.save(model, folder / "hf", format="hf")
    vitkit.save(model, folder / "timm", format="timm")
    shutil.copytree(folder / "hf", folder / "foreign")
    preprocessor = json.loads((folder / "hf/preprocessor_config.json").read_text())
    del preprocessor["vitkit"]
    (folder / "foreign/preprocessor_config.json").write_text(json.dumps(preprocessor))
    shutil.copytree(folder / "hf", folder / "parts")
    (folder / "parts/model.safetensors").rename(folder / "parts/part-1.safetensors")
    names = load_file(folder / "parts/part-1.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "part-1.safetensors")}
    (folder / "parts/model.safetensors.index.json").write_text(json.dumps(index))
    write_shards(open_data(folder / "photos"), folder / "shards")
    rows = [{"path": f"photos/{name}/0.png", "label": name, "split": "train"} for name in ("ant", "bee", "cow")]
    (folder / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "real.json").write_text(json.dumps([[1], [2, 3], []]))
    metadata = json.dumps(build_metadata(Classifier(folder), "uint8", "float32"))
    graph = onnx.helper.make_graph([], "empty", [], [])
    exported = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(exported, {"vitkit": metadata})
    onnx.save(exported, folder / "model.onnx")
    (folder / "map.json").write_text(json.dumps({"chair": ["ant", 1], "banana": "bee; cow", "none": None}))
    cache = ImageInfoCache(folder / "facts.sqlite")
    cache.lookup((folder / ANTS[0]).read_bytes(), 3)
    cache.save()
    interrupt_prediction(folder)
    return folder


def interrupt_prediction(folder: Path) -> None:
    """Leave the journal of a prediction that was stopped after three rows of four."""

    def stop(items: Any, total: int, what: str, images_in: Any = None) -> Any:
        for number, item in enumerate(items):
            if number == 3:
                raise KeyboardInterrupt
            yield item

    classifier = Classifier(folder)
    classifier.engine = replace(classifier.engine, batch=1)
    with contextlib.chdir(folder), pytest.raises(KeyboardInterrupt):
        predict_into(folder / "rows.jsonl", classifier, ANTS, top=2, progress=stop)


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "copy")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_good_copy_is_read(name: str, copy: Path):
    if name == "a label in a tar file":
        replace_sidecar(copy, b'{"label": "ant"}')
    if name == "metadata of a pt2 file":
        replace_pt2(copy, json.dumps(DOCUMENTS[name].content(copy)).encode())
    if name == "a tensor's description in a pt2 file":
        replace_tensors_config(copy, json.dumps(DOCUMENTS[name].content(copy)).encode())
    DOCUMENTS[name].read(copy)


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_whatever_stands_in_a_document_is_read_or_is_an_error_of_ours(
    name: str, good: Path, copy: Path, draw: st.DataObject
):
    document, before = DOCUMENTS[name], peak_memory()
    document.replace(copy, draw.draw(damaged_text(document.content(good))))
    with contextlib.suppress(VitkitError):
        document.read(copy)
    assert peak_memory() - before < MOST_MEMORY


# a line of a manifest may be empty, a label may be missing, rows of a journal and cached facts are computed again
@pytest.mark.parametrize(
    "name", sorted(DOCUMENTS.keys() - {"a manifest", "a label in a tar file", "rows of a journal", "a cached fact"})
)
def test_a_document_that_is_no_object_is_an_error_of_ours(name: str, copy: Path):
    for text in NO_OBJECTS:
        if name == "real.json" and text == b"[]":  # of no images
            continue
        DOCUMENTS[name].replace(copy, text)
        with pytest.raises(VitkitError) as caught:
            DOCUMENTS[name].read(copy)
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("text", NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_rows_after_a_damaged_one_are_computed_again(text: bytes, copy: Path):
    DOCUMENTS["rows of a journal"].replace(copy, text)
    continue_journal(copy)
    rows = [json.loads(row)["image"] for row in (copy / "rows.jsonl").read_text().splitlines()]
    assert rows == [*map(str, ANTS)]


def peak_memory() -> int:
    """Return the most memory that this process has had, in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0

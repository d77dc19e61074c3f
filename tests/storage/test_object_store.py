"""Images, shards, manifests, weights and answers on a local S3 server give what the same files on disk give."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import vitkit
from tests.predict.small_model import LABELS, real_images, small_model
from tests.storage.object_store import (
    BUCKET,
    Environ,
    FaultyStore,
    make_bucket,
    make_public,
    serve_store,
    upload_folder,
)
from vitkit.cli.main import main
from vitkit.data.loader import Loader
from vitkit.data.sources.dataset import Data
from vitkit.data.sources.open import open_data
from vitkit.data.split_dataset import SplitDataset
from vitkit.data.transforms import TrainTransform
from vitkit.predict.stream import predict_into
from vitkit.storage import remote, repeats
from vitkit.storage.remote_folder import RemoteFolder
from vitkit.storage.repeats import REQUESTS, TIMEOUT, TRIES, repeated_requests

FAULTS = ("500 InternalError", "503 SlowDown", "cut", "reset")
SECRET = "5up3r5ecret"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    TIMEOUT: "20",  # a busy machine may be slow, and repeats are counted
    TRIES: "6",
}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FaultyStore, str]]:
    with serve_store() as (store, address), pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        patch.setattr(repeats, "FIRST", 0.02)
        remote._start_anew()
        make_bucket()
        yield store, address
        remote._start_anew()


@pytest.fixture
def store(server: tuple[FaultyStore, str]) -> FaultyStore:
    return server[0]


@pytest.fixture
def address(server: tuple[FaultyStore, str]) -> str:
    return server[1]


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(TIMEOUT, "1")
    remote._start_anew()
    yield
    monkeypatch.undo()
    remote._start_anew()


@pytest.fixture(scope="module")
def local(server: tuple[FaultyStore, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run, images in class folders, one of them broken, and the same as shards, tar, zip and a manifest."""
    folder = tmp_path_factory.mktemp("local")
    for split, count in (("train", 10), ("test", 5)):
        for name in LABELS[:2]:
            (folder / "photos" / split / name).mkdir(parents=True)
            real_images(folder / "photos" / split / name, count)
    (folder / "photos" / "train" / "ant" / "003.jpg").write_bytes(b"\xff\xd8\xffnothing")
    main(["shard", str(folder / "photos"), str(folder / "shards")])
    images = sorted((folder / "photos").rglob("*.*"))
    with tarfile.open(folder / "plain.tar", "w") as tar, zipfile.ZipFile(folder / "photos.zip", "w") as archive:
        for image in images:
            name = image.relative_to(folder / "photos").as_posix()
            tar.add(image, name)
            archive.write(image, name, zipfile.ZIP_DEFLATED if image.suffix == ".png" else zipfile.ZIP_STORED)
    rows = [f"{image.relative_to(folder).as_posix()},{image.parent.name}" for image in images]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows, ""]))
    vitkit.save(small_model(), folder / "run")
    upload_folder(folder, f"s3://{BUCKET}/all")
    make_public(f"{BUCKET}/all/list.csv", f"{BUCKET}/all/photos")
    return folder


@pytest.fixture
def url(local: Path) -> str:
    return f"s3://{BUCKET}/all"


def contents(data: Data) -> dict[tuple[str, str], bytes]:
    """Return the bytes of all images by split and the end of their names."""
    ahead = {name: split.read_ahead(range(len(split))) for name, split in data.splits.items()}
    return {
        (name, "/".join(split.keys[index].split("/")[-2:])): bytes(split.read(index))
        for name, split in ahead.items()
        for index in range(len(split))
    }


def rows_of(classifier: vitkit.Classifier, images: str | Path, out: str | Path) -> str:
    from vitkit.data.sources.image_paths import find_image_names

    predict_into(out, classifier, find_image_names([images]), top=3)
    return remote.read(out, 10**9).decode() if isinstance(out, str) else out.read_text()


@pytest.mark.parametrize("source", ["photos", "shards", "plain.tar", "photos.zip", "list.csv"])
def test_data_in_a_bucket_are_those_on_disk(source: str, local: Path, url: str):
    here, there = open_data(local / source), open_data(f"{url}/{source}")
    assert there.classes == here.classes == LABELS[:2]
    assert there.notes == here.notes
    assert contents(there) == contents(here)
    for name, split in here.splits.items():
        np.testing.assert_array_equal(there.splits[name].labels, split.labels)


def test_https_serves_what_a_manifest_lists(local: Path, url: str, address: str, tmp_path: Path):
    """A manifest on disk may name URLs, and one on a web server images beside it."""
    here = contents(open_data(local / "list.csv"))
    assert contents(open_data(f"{address}/{BUCKET}/all/list.csv")) == here
    lines = (local / "list.csv").read_text().splitlines()
    with_urls = [lines[0], *(f"{address}/{BUCKET}/all/{line}" for line in lines[1:-1]), f"{url}/{lines[-1]}"]
    (tmp_path / "urls.csv").write_text("\n".join(with_urls))
    assert contents(open_data(tmp_path / "urls.csv")) == here


def test_answers_survive_faults_and_every_repeat_is_counted(store: FaultyStore, local: Path, url: str, tmp_path: Path):
    classifier, before = vitkit.Classifier(str(local / "run")), repeated_requests()
    expected = rows_of(classifier, local / "photos", tmp_path / "here.csv").replace(str(local), url)
    with store.failing(store.every(3, *FAULTS)):
        assert rows_of(classifier, f"{url}/photos", f"{url}/faults.csv") == expected
    assert set(store.injected) == set(FAULTS)
    assert repeated_requests() - before == len(store.injected) >= 8


@pytest.mark.usefixtures("short_timeout")
def test_an_answer_that_does_not_come_is_asked_for_again(store: FaultyStore, local: Path, url: str):
    before, name = repeated_requests(), f"{url}/photos/test/ant/000.png"
    with store.failing(_first("late")):
        assert remote.read(name, 10**6) == (local / "photos/test/ant/000.png").read_bytes()
    assert repeated_requests() - before >= 1


def test_a_listing_and_an_upload_repeat_their_own_requests(store: FaultyStore, url: str, tmp_path: Path):
    before, file = repeated_requests(), tmp_path / "a.bin"
    file.write_bytes(b"content")
    with store.failing(_first("503 SlowDown")):
        assert "train/ant/000.png" in remote.list_files(f"{url}/photos")
    with store.failing(_first("500 InternalError", "PUT")):
        remote.upload(file, f"{url}/a.bin")
    assert remote.read(f"{url}/a.bin", 100) == b"content"
    assert repeated_requests() - before == 2


def test_workers_count_their_repeats_too(store: FaultyStore, local: Path, url: str):
    before, transform = repeated_requests(), TrainTransform(image=(32, 32))
    split = open_data(f"{url}/photos").splits["train"]
    own = SplitDataset(split=open_data(local / "photos").splits["train"], transform=transform)
    with store.failing(store.every(4, "500 InternalError", "cut")):
        batches = iter(Loader(SplitDataset(split=split, transform=transform), 4, workers=2, max_failed=0.5))
        expected = iter(Loader(own, 4, max_failed=0.5))
        for _ in range(5):
            one, other = next(batches), next(expected)
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.indices, other.indices)
        batches.close()  # type: ignore[attr-defined]
    assert repeated_requests() > before


def test_images_near_each_other_in_a_shard_come_with_one_request(store: FaultyStore, url: str):
    split = open_data(f"{url}/shards").splits["train"]
    with store.failing(lambda environ: None):
        ahead = split.read_ahead(range(len(split)))
        for index in range(len(split)):
            ahead.read(index)
        assert len(store.requests) == 1
    with store.failing(lambda environ: None):
        for index in range(len(split)):
            split.read(index)
        assert len(store.requests) == len(split)


def test_no_more_requests_are_under_way_than_allowed(store: FaultyStore, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(REQUESTS, "3")
    split = open_data(f"{url}/photos").splits["train"]
    with store.failing(lambda environ: None):
        ahead = split.read_ahead(range(len(split)))
        for index in range(4):
            ahead.read(index)
        ahead.read(4)
        assert len([request for request in store.requests if "photos" in request]) <= 5 + 3


def test_training_on_remote_shards_is_training_on_local_ones(local: Path, url: str, tmp_path: Path):
    settings = {"model": "mu/4", "image": 28, "weights": "none", "steps": 2, "workers": 0, "device": "cpu"}
    settings |= {"max_failed": 0.5, "batch": 8}
    for name, data in (("here", str(local / "shards")), ("there", f"{url}/shards")):
        vitkit.fit(data, **settings, out=tmp_path / name)
    here, there = (tmp_path / name / "model.safetensors" for name in ("here", "there"))
    one, other = (vitkit.load(path.parent).state_dict() for path in (here, there))
    assert all(torch.equal(one[name], other[name]) for name in one)
    record = json.loads((tmp_path / "there" / "run.json").read_text())
    assert record["data"]["name"] == f"{url}/shards"
    assert record["repeated_requests"] == 0


def test_a_run_whose_store_fails_is_resumed_to_the_same_weights(
    store: FaultyStore, local: Path, url: str, tmp_path: Path
):
    settings = {"model": "mu/4", "image": 28, "weights": "none", "steps": 8, "workers": 0, "device": "cpu"}
    settings |= {"max_failed": 0.5, "batch": 8, "cache": "no", "save_every": 1}

    def rule(environ: Environ) -> str | None:
        return "500 InternalError" if (tmp_path / "run/checkpoints/step-00000001/record.json").exists() else None

    with store.failing(rule), pytest.raises(vitkit.VitkitError, match=r"(?s)after 6 tries.*vitkit resume"):
        vitkit.fit(f"{url}/photos", **settings, out=tmp_path / "run")
    resumed = vitkit.Run(tmp_path / "run").resume().model.state_dict()
    whole = vitkit.fit(f"{url}/photos", **settings, out=tmp_path / "whole").model.state_dict()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_a_run_folder_in_a_bucket_scores_what_it_held_out(url: str, local: Path, tmp_path: Path, capsys):
    shutil.copytree(local / "photos" / "train", tmp_path / "data")
    settings = {"model": "mu/4", "image": 28, "weights": "none", "steps": 1, "workers": 0, "device": "cpu"}
    vitkit.fit(tmp_path / "data", **settings, max_failed=0.5, out=tmp_path / "run")
    upload_folder(tmp_path / "run", f"{url}/trained")
    scores = [
        vitkit.Run(run).evaluate(tmp_path / "data", max_failed=0.5) for run in (tmp_path / "run", f"{url}/trained")
    ]
    assert scores[0].images == scores[1].images < 20  # the held-out ones, which run.json names
    assert scores[0].top1.value == scores[1].top1.value


def test_weights_are_copied_once_and_again_when_they_change(store: FaultyStore, url: str, local: Path):
    with store.failing(lambda environ: None):
        model = vitkit.load(f"{url}/run/model.safetensors")
    assert model.metadata.labels == LABELS
    from vitkit.storage.local_copies import local_copy

    with store.failing(lambda environ: None):
        local_copy(f"{url}/run/model.safetensors")
        assert [request.split()[0] for request in store.requests] == ["HEAD"]
    remote.write(f"{url}/changing.json", b"1")
    first = local_copy(f"{url}/changing.json").read_bytes()
    remote.write(f"{url}/changing.json", b"2")
    assert (first, local_copy(f"{url}/changing.json").read_bytes()) == (b"1", b"2")


def test_a_pickle_behind_a_url_is_refused_whatever_its_name(url: str, tmp_path: Path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "model.pt")
    for name in ("model.pt", "model.safetensors", "weights.npz", "pickled/model.safetensors"):
        remote.upload(tmp_path / "model.pt", f"{url}/strange/{name}")
    for name in ("model.pt", "model.safetensors", "weights.npz", "pickled"):
        with pytest.raises(vitkit.VitkitError, match="no pickles"):
            vitkit.load(f"{url}/strange/{name}")


def test_a_denied_upload_keeps_the_rows_and_the_same_command_uploads_them(
    store: FaultyStore, local: Path, url: str, capsys: pytest.CaptureFixture[str]
):
    command = ["predict", str(local / "run"), f"{url}/photos", "--out", f"{url}/out/answers.jsonl", "--device", "cpu"]
    command += ["--max-failed", "0.5"]
    for code, words in (("403 AccessDenied", "access is denied"), ("507 XMinioStorageFull", "the store is full")):
        with store.failing(_always(code, "PUT")), pytest.raises(SystemExit) as ended:
            main(command)
        error = capsys.readouterr().err
        assert ended.value.code == 2
        assert words in error
        assert "the same command without --overwrite" in error
        journal = Path(error.split("kept")[1].split(": the rows")[0].strip())
        assert journal.is_file()
    with store.failing(lambda environ: None):
        main(command)
    assert not [request for request in store.requests if "/photos/t" in request]  # nothing was computed again
    assert "30 of them from an earlier call" in capsys.readouterr().out
    assert len(remote.read(f"{url}/out/answers.jsonl", 10**7).splitlines()) == 30
    assert not journal.exists()


def test_shards_of_a_job_meet_in_a_folder_of_the_bucket(
    store: FaultyStore, local: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """No disk is shared: one process computes the first of three shards, one the last, and a third what is missing."""
    images, out = [f"{url}/photos/test"] * 15, f"{url}/answers/"
    command = ["predict", str(local / "run"), *images, "--device", "cpu", "--out"]
    main([*command, str(tmp_path / "whole.csv")])
    with store.failing(store.every(20, "500 InternalError", "cut")):
        main([*command, out, "--shard", "0/3"])
        main([*command, out, "--shard", "2/3"])
        main([*command, out])
    assert len(store.injected) > 5
    assert "computing the missing 64 images: 64 to 127" in capsys.readouterr().out
    names = remote.list_files(out)
    assert "manifest.json" in names
    assert "predictions.parquet" in names
    table = pyarrow.parquet.read_table(io.BytesIO(remote.read(f"{out}predictions.parquet", 10**8)))
    whole = [*csv.DictReader((tmp_path / "whole.csv").open())]
    assert table["image"].to_pylist() == [row["image"] for row in whole]
    assert table["error"].to_pylist() == [row["error"] or None for row in whole]
    for found, row in zip(table["probability"].to_pylist(), whole, strict=True):
        assert row["error"] or found == float(row["probability_1"])
    assert not list((Path(os.environ["XDG_CACHE_HOME"]) / "vitkit" / "outputs").rglob("predictions*"))


def test_only_one_of_several_begins_a_folder(store: FaultyStore, url: str):
    folder = RemoteFolder(f"{url}/begun")
    assert folder.names() == []
    assert [folder.create("manifest.json", content) for content in (b"1", b"2")] == [b"1", b"1"]
    assert folder.names() == ["manifest.json"]
    folder.delete("manifest.json")
    folder.delete("manifest.json")
    assert not folder.exists("manifest.json")


def test_presigned_urls_are_read_and_never_written_down(
    local: Path, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    base = f"http://user:{SECRET}@{address.removeprefix('http://')}/{BUCKET}/all"
    query = f"X-Amz-Credential=AKIA&X-Amz-Signature={SECRET}"
    images = [f"{base}/photos/test/ant/00{number}.png?{query}" for number in (0, 2, 9)]
    main(["-v", "predict", f"{base}/run", *images, "--out", str(tmp_path / "a.jsonl"), "--device", "cpu"])
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{image},ant\n" for image in images))
    main(["-v", "evaluate", f"{base}/run", str(tmp_path / "list.csv"), "--device", "cpu", "--workers", "2"])
    with pytest.raises(SystemExit):
        main(["-v", "predict", f"{base}/none?{query}", images[0], "--device", "cpu"])
    for setting in ([f"{base}/list.csv"], ["fashion", "--weights", f"{base}/run"]):
        with pytest.raises(SystemExit) as ended:
            main(["fit", *setting, "--out", str(tmp_path / "run")])
        assert ended.value.code == 2
    output = capsys.readouterr()
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows] == [f"{address}/{BUCKET}/all/photos/test/ant/00{n}.png" for n in (0, 2, 9)]
    assert [row["error"] is None for row in rows] == [True, True, False]
    assert SECRET not in output.out + output.err
    assert "there is no such object" in output.err
    cache = Path(os.environ["XDG_CACHE_HOME"])
    written = [path for folder in (tmp_path, cache) for path in folder.rglob("*") if path.is_file()]
    assert [path.name for path in written if SECRET.encode() in path.read_bytes()] == ["list.csv"]


def _first(fault: str, method: str = "GET"):
    """Return a rule that fails the first request of a method."""
    waiting = [fault]
    return lambda environ: waiting.pop() if waiting and environ["REQUEST_METHOD"] == method else None


def _always(fault: str, method: str = ""):
    def rule(environ: Environ) -> str | None:
        return fault if method in ("", environ["REQUEST_METHOD"]) else None

    return rule


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        (None, "s3://no-such-bucket/photos", "there is no such bucket"),
        (None, "S3://no-such-bucket/photos", "there is no such bucket"),
        (None, "s3://", "names no bucket"),
        (None, "https:///list.csv", "names no host"),
        (None, f"s3://{BUCKET}/none/", "does not exist, or is empty"),
        (None, f"s3://{BUCKET}/all/none.csv", "there is no such object"),
        (None, f"s3://{BUCKET}/all/none.tar", "there is no such object"),
        (None, f"s3://{BUCKET}/all/none.zip", "there is no such object"),
        (None, f"s3://{BUCKET}/all/photos/test/ant/000.png", "the folder it is in"),
        (None, f"s3://user:{SECRET}@{BUCKET}/all", "AWS_SECRET_ACCESS_KEY"),
        (None, "gs://bucket/photos", "gcsfs"),
        (None, "nothing://bucket/photos", "nothing is known about nothing://"),
        ("403 InvalidAccessKeyId", f"s3://{BUCKET}/all/photos", "access is denied"),  # HEAD says no more
        ("403 SignatureDoesNotMatch", f"s3://{BUCKET}/all/*.jpg", "the credentials are wrong"),
        ("400 ExpiredToken", f"s3://{BUCKET}/all/*.jpg", "have expired"),
        ("403 AccessDenied", f"s3://{BUCKET}/all/*.jpg", "cannot be listed: access is denied"),
        ("500 InternalError", f"s3://{BUCKET}/all/*.jpg", "after 6 tries"),
    ],
)
def test_what_is_wrong_with_a_store_is_said_in_one_message(
    fault: str | None, name: str, words: str, store: FaultyStore, local: Path, capsys: pytest.CaptureFixture[str]
):
    verb = ["predict", str(local / "run"), name] if name.endswith("*.jpg") else ["evaluate", str(local / "run"), name]
    rule = (lambda environ: None) if fault is None else _always(fault)
    with store.failing(rule), pytest.raises(SystemExit) as ended:
        main([*verb, "--device", "cpu"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in error
    assert SECRET not in error


def test_a_store_that_cannot_be_reached_stops_the_work_and_keeps_its_rows(
    store: FaultyStore, local: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """An image that no request can get is no bad image: rows that say so would have to be found and computed again."""
    command = ["predict", str(local / "run"), f"{url}/photos", "--out", str(tmp_path / "a.csv"), "--device", "cpu"]
    command += ["--max-failed", "0.5"]

    def rule(environ: Environ) -> str | None:
        return "500 InternalError" if environ["PATH_INFO"].endswith("test/bee/004.png") else None

    for workers in ("0", "2"):
        with store.failing(rule), pytest.raises(SystemExit) as ended:
            main([*command, "--workers", workers])
        error = capsys.readouterr().err
        assert ended.value.code == 2
        assert "does not answer as it should, after 6 tries" in error
        assert "Traceback" not in error
        assert f"{tmp_path / 'a.csv.part'}: the rows so far" in error
        assert "requests were repeated" in error
    main(command)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 31


def test_a_wrong_number_of_tries_is_the_users_mistake_and_not_an_images(
    local: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(TRIES, "zero")
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(local / "run"), f"{url}/photos/test/bee/004.png", "--device", "cpu"])
    assert ended.value.code == 2
    assert f"{TRIES}='zero' is not a whole number from 1 on" in capsys.readouterr().err


def test_rows_are_not_written_to_a_url_without_a_bucket(local: Path, url: str, capsys: pytest.CaptureFixture[str]):
    image = str(local / "photos" / "test" / "bee" / "004.png")
    for verb in ("predict", "embed"):
        with pytest.raises(SystemExit) as ended:
            main([verb, str(local / "run"), image, "--out", "s3://", "--device", "cpu"])
        assert ended.value.code == 2
        assert "names no bucket" in capsys.readouterr().err


def test_an_unreachable_endpoint_is_named(local: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv(TRIES, "2")
    remote._start_anew()
    try:
        with pytest.raises(vitkit.VitkitError, match=r"(?s)after 2 tries.*http://127.0.0.1:9"):
            open_data("s3://bucket/photos")
    finally:
        remote._start_anew()


def test_without_credentials_the_message_says_where_they_belong(
    local: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    remote._start_anew()
    try:
        with pytest.raises(vitkit.VitkitError, match=r"(?s)no credentials.*AWS_PROFILE"):
            open_data(f"s3://{BUCKET}/photos")
    finally:
        remote._start_anew()


@pytest.mark.parametrize(
    "verb",
    ["fit fashion --out {}", "pretrain fashion --out {}", "resume {}", "shard fashion {}", "paper rollout --out {}"],
)
def test_run_folders_and_shards_are_written_to_a_file_system(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(verb.format(f"s3://{BUCKET}/run").split())
    assert ended.value.code == 2
    assert "locks and" in " ".join(capsys.readouterr().err.replace("│", "").split())
    with pytest.raises(vitkit.VitkitError, match="locks and atomic renames"):
        vitkit.fit("fashion", out=f"s3://{BUCKET}/run")


def test_python_takes_urls_where_it_takes_paths(local: Path, url: str):
    run = vitkit.Run(f"{url}/run", device="cpu")
    names = ["photos/test/ant/000.png", "photos/test/bee/001.jpg"]
    there = run.predict([f"{url}/{name}" for name in names])
    here = vitkit.Run(local / "run", device="cpu").predict([local / name for name in names])
    assert [one.probabilities.tolist() for one in there] == [one.probabilities.tolist() for one in here]
    np.testing.assert_array_equal(
        run.embed(f"{url}/photos/test", workers=0), run.embed(local / "photos/test", workers=0)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("short_timeout")
def test_two_thousand_images_with_faults_have_the_rows_of_the_disk(
    store: FaultyStore, local: Path, url: str, tmp_path: Path
):
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02d}").mkdir()
        real_images(folder / f"{number:02d}", 100)
    upload_folder(folder, f"{url}/many")
    classifier, before = vitkit.Classifier(str(local / "run")), repeated_requests()
    expected = rows_of(classifier, folder, tmp_path / "here.csv").replace(str(folder), f"{url}/many")
    with store.failing(store.every(11, *FAULTS, "late")):
        assert rows_of(classifier, f"{url}/many", f"{url}/many.csv") == expected
    # within a second, a busy machine may miss an answer that was not held back
    assert repeated_requests() - before >= len(store.injected) >= 180

"""Bombs: files that state or decompress to gigabytes are refused by their sizes, before they take memory."""

from __future__ import annotations

import importlib.util
import io
import json
import lzma
import multiprocessing
import os
import struct
import subprocess
import sys
import threading
import zipfile
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.data.sample_images import encode, npy, scene
from vitkit.data import bounded_read
from vitkit.data.bounded_read import TooLarge, check_npz, inflate, load_npy, read_image_file
from vitkit.data.check import check
from vitkit.data.decode import decode
from vitkit.data.decode_memory import ENORMOUS, LARGE, DecodeMemory, decode_memory
from vitkit.data.sources.arrays import open_arrays
from vitkit.data.sources.dataset import DataError
from vitkit.data.sources.open import open_data
from vitkit.errors import ConfigError, DecodeError, WeightsError
from vitkit.weights.files import open_checkpoint

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bombs.py"
ALLOWED = 300  # MB beyond the idle process

# In a process of its own: peak memory never falls again.
REFUSE_ALL = """
import json, resource, sys
from multiprocessing.connection import Connection
from pathlib import Path
from vitkit.data.check import check
from vitkit.data.sources.open import open_data
from vitkit.predict.inputs import pixels_of
from vitkit.weights.files import open_checkpoint

def peak():
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.is_file() else ():
        if line.startswith("VmHWM:"):  # of this program alone; the other begins with the memory of the parent process
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

harmless, *bombs = sys.argv[1:]
assert not check(open_data(harmless)).bad
results, idle = {}, peak()
for bomb in bombs:
    path, refused = Path(bomb), []
    try:
        refused += [reason for _, reason in check(open_data(bomb)).bad]
    except ValueError as error:
        refused.append(str(error))
    for image in path.glob("*/bomb.*"):
        try:
            pixels_of(str(image), channels=3)
        except ValueError as error:
            refused.append(str(error))
    if path.suffix == ".npz":
        try:
            open_checkpoint(path)
        except ValueError as error:
            refused.append(str(error))
    results[bomb] = (refused, peak() - idle)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def bombs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bombs", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bombs"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def refusals(bombs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], float]]:
    """Return the reasons and the megabytes so far, by the name of each bomb."""
    folder = tmp_path_factory.mktemp("bombs")
    harmless = bombs.image_folder(folder / "harmless", {})
    paths = bombs.make_bombs(folder / "bombs")
    done = subprocess.run(
        [sys.executable, "-c", REFUSE_ALL, str(harmless), *map(str, paths.values())],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    return {name: results[str(path)] for name, path in paths.items()}


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("zip", ["4,278,190,080 bytes, over the limit of 536,870,912"]),
        ("zip that lies", ["is damaged at this file"]),
        ("npz", ["would decompress to 4,278,190,080"] * 2),
        ("npz of weights", ["has no usable images", "would decompress to 4,278,190,080"]),
        ("npy header", ["reading array header"] * 2),
        ("LZMA TIFF", ["decompresses to more than its 320 bytes"] * 2),
        ("JPEG 2000", ["196,000,000 pixels in"] * 4),
        ("sparse file", ["12,000,000,000 bytes, over the limit"] * 2),
    ],
)
def test_each_bomb_is_refused_in_little_memory(
    name: str, reasons: list[str], refusals: dict[str, tuple[list[str], float]]
):
    refused, megabytes = refusals[name]
    assert len(refused) == len(reasons), refused
    assert all(reason in text for reason, text in zip(reasons, refused, strict=True)), refused
    assert megabytes < ALLOWED


def test_a_file_up_to_the_limit_is_read_and_a_longer_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.jpg"
    file.write_bytes(bytes(1000))
    monkeypatch.setenv("VITKIT_MAX_IMAGE_BYTES", "1000")
    assert read_image_file(file) == bytes(1000)
    monkeypatch.setenv("VITKIT_MAX_IMAGE_BYTES", "999")
    with pytest.raises(TooLarge, match=r"^1,000 bytes, over the limit of 999 .*VITKIT_MAX_IMAGE_BYTES"):
        read_image_file(file)


def test_a_limit_that_is_not_a_number_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VITKIT_MAX_IMAGE_BYTES", "1GB")
    with pytest.raises(ConfigError, match="VITKIT_MAX_IMAGE_BYTES='1GB' is not a number of bytes"):
        read_image_file(__file__)


@given(content=st.binary(max_size=2000), error=st.integers(-2000, 2000))
def test_deflate_data_are_decompressed_only_to_the_size_that_was_stated(content: bytes, error: int):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed, stated = packer.compress(content) + packer.flush(), max(len(content) + error, 0)
    if stated == len(content):
        assert inflate(packed, stated) == content
    else:
        with pytest.raises(zlib.error):
            inflate(packed, stated)


@given(
    shape=st.lists(st.integers(0, 2**40), max_size=4),
    dtype=st.sampled_from(["|u1", "<f8", "|V2000000000", "<U300000000", "|b1"]),
    body=st.binary(max_size=50),
)
def test_a_npy_file_is_loaded_only_if_its_values_are_there(shape: list[int], dtype: str, body: bytes):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": tuple(shape)})
    content = file.getvalue() + body
    size = np.dtype(dtype).itemsize * int(np.prod(np.array(shape, dtype=object), initial=1))
    if size > len(body):
        with pytest.raises(ValueError, match="truncated"):
            load_npy(content)
        with pytest.raises(DecodeError):
            decode(content)


def test_compressed_arrays_are_read_unless_they_are_almost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    photos, labels = rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8), np.arange(10) % 2
    np.savez_compressed(tmp_path / "photos.npz", images=photos, labels=labels)
    np.savez_compressed(tmp_path / "black.npz", images=np.zeros((100, 32, 32, 3), np.uint8), labels=np.arange(100) % 2)
    np.savez(tmp_path / "stored.npz", images=np.zeros((100, 32, 32, 3), np.uint8), labels=np.arange(100) % 2)
    monkeypatch.setattr(bounded_read, "SMALL", 1000)
    assert len(open_arrays("photos", tmp_path / "photos.npz").splits["all"]) == 10
    assert len(open_arrays("stored", tmp_path / "stored.npz").splits["all"]) == 100
    with pytest.raises(DataError, match="would decompress to") as caught:
        open_arrays("black", tmp_path / "black.npz")
    assert "np.savez, uncompressed" in str(caught.value)
    np.savez_compressed(tmp_path / "zeros.npz", kernel=np.zeros(10**6, np.float32))
    with pytest.raises(WeightsError, match="would decompress to 4,000,000"):
        open_checkpoint(tmp_path / "zeros.npz")


def test_many_arrays_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    np.savez_compressed(tmp_path / "a.npz", **{f"w{row}": np.zeros(10**5, np.uint8) for row in range(20)})
    assert check_npz(tmp_path / "a.npz")["w0"].shape == (10**5,)
    monkeypatch.setattr(bounded_read, "SMALL", 10**6)
    with pytest.raises(TooLarge, match="would decompress to 2,000,000"):
        check_npz(tmp_path / "a.npz")


def test_a_torch_file_with_compressed_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """torch stores tensors uncompressed, but would decompress them."""
    torch.save({"kernel": torch.zeros(10**6)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for member in plain.namelist():
            bomb.writestr(member, plain.read(member), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(bounded_read, "SMALL", 1000)
    assert open_checkpoint(tmp_path / "plain.pt").tensors["kernel"].shape == (10**6,)
    with pytest.raises(WeightsError, match="would decompress to 4,000,"):
        open_checkpoint(tmp_path / "bomb.pt")


def test_a_tiff_of_five_bands_is_read_by_any_bounded_compression(bombs: ModuleType):
    tifffile = pytest.importorskip("tifffile")
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 5), dtype=np.uint8)
    packed = {
        1: image.tobytes(),
        8: zlib.compress(image.tobytes()),
        34925: lzma.compress(image.tobytes()),
        32773: b"".join(b"\x27" + row.tobytes() for row in image),  # 40 bytes as they are
    }
    for compression, strip in packed.items():
        content = bombs.tiff(strip, bands=5, compression=compression)
        assert np.array_equal(tifffile.imread(io.BytesIO(content)), image)
        assert np.array_equal(decode(content, channels=5), image)


@pytest.mark.parametrize(
    ("compression", "strip"),
    [
        (8, zlib.compress(bytes(10**6))),
        (34925, lzma.compress(bytes(10**6))),
        (34925, lzma.compress(bytes(320)) + lzma.compress(bytes(10**6))),  # tifffile decompresses both
        (32773, b"\x81\0" * 1000),
    ],
)
def test_a_strip_with_more_than_its_pixels_is_refused(compression: int, strip: bytes, bombs: ModuleType):
    with pytest.raises(DecodeError, match="decompresses to more than its 320 bytes"):
        decode(bombs.tiff(strip, bands=5, compression=compression), channels=5)


def test_an_lzma_strip_with_an_enormous_dictionary_is_refused(bombs: ModuleType):
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 4096}]
    strip = bytearray(lzma.compress(bytes(320), format=lzma.FORMAT_ALONE, filters=filters))
    strip[1:5] = struct.pack("<I", 2**32 - 1)
    with pytest.raises(DecodeError, match=r"[Mm]emory"):
        decode(bombs.tiff(bytes(strip), bands=5, compression=34925), channels=5)


@pytest.mark.parametrize("compression", [7, 34712, 50000, 50001])  # JPEG, JPEG 2000, Zstandard, WebP
def test_a_compression_that_returns_as_much_as_it_likes_is_refused(compression: int, bombs: ModuleType):
    with pytest.raises(DecodeError, match="compressed by"):
        decode(bombs.tiff(bytes(100), bands=5, compression=compression), channels=5)


def test_a_large_image_of_few_bytes_is_refused_and_an_ordinary_one_is_not(bombs: ModuleType):
    with pytest.raises(DecodeError, match=r"25,000,000 pixels in \d+ bytes, more than 100,000 a byte"):
        decode(bombs.jpeg2000_bomb(side=5_000))
    blank_page = encode(np.full((5_000, 5_000), 255, np.uint8), "PNG")
    assert decode(blank_page, channels=1).shape == (5_000, 5_000, 1)


def test_a_check_names_both_jpeg2000_bombs(bombs: ModuleType, tmp_path: Path):
    files = {"a/bomb.j2k": bombs.jpeg2000_bomb(), "b/bomb.j2k": bombs.jpeg2000_bomb(colour=200)}
    report = check(open_data(str(bombs.image_folder(tmp_path, files))))
    assert {key for key, _ in report.bad} == files.keys()
    assert not report.ok


def test_threads_share_one_budget_of_large_images():
    memory, inside, most = DecodeMemory(budget=5 * LARGE), [], []
    lock = threading.Lock()

    def work(pixels: int) -> None:
        for _ in range(20):
            with memory.hold():
                memory.reserve(pixels)
                memory.reserve(pixels)  # the same image, decoded again
                with lock:
                    inside.append(pixels)
                    most.append(sum(inside))
                with lock:
                    inside.remove(pixels)

    sizes = [LARGE, 2 * LARGE, 3 * LARGE, 4 * LARGE, 5 * LARGE]
    threads = [threading.Thread(target=work, args=(size,)) for size in sizes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert max(most) <= memory.budget
    assert memory.free == memory.budget


def test_an_image_over_the_budget_is_decoded_alone_and_small_ones_do_not_wait():
    memory = DecodeMemory(budget=LARGE)
    with memory.hold():
        memory.reserve(100 * LARGE)
        assert memory.free == 0
        other = threading.Thread(target=lambda: memory.reserve(LARGE - 1))
        other.start()
        other.join(60)
        assert not other.is_alive()
    assert memory.free == memory.budget


def test_pixels_of_an_error_give_their_reservation_back():
    memory = DecodeMemory(budget=LARGE)

    def fail() -> None:
        with memory.hold():
            memory.reserve(LARGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert memory.free == memory.budget


def decode_enormous(connection: Connection, pixels: int) -> None:
    with decode_memory.hold():
        decode_memory.reserve(pixels)
        connection.send("begun")
        connection.recv()
    connection.send("done")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="data workers are forked")
def test_data_workers_decode_one_enormous_image_at_a_time_and_a_killed_one_gives_its_turn_back():
    context = multiprocessing.get_context("fork")
    workers = []
    for pixels in (ENORMOUS + 1, 3 * ENORMOUS, ENORMOUS):
        ours, theirs = context.Pipe()
        process = context.Process(target=decode_enormous, args=(theirs, pixels), daemon=True)
        process.start()
        workers.append((process, ours))
        if len(workers) != 2:  # the second one waits
            assert ours.poll(60)
            assert ours.recv() == "begun"
    (first, _), (second, waiting), (third, large) = workers
    try:
        assert not waiting.poll(0.2)
        first.kill()
        assert waiting.poll(60)
        assert waiting.recv() == "begun"
        for connection in (waiting, large):
            connection.send("go on")
            assert connection.poll(60)
            assert connection.recv() == "done"
    finally:
        for process in (first, second, third):
            process.kill()
            process.join(60)


def test_a_npy_image_is_read_as_before():
    assert np.array_equal(decode(npy(scene())), scene())

"""URLs are told from paths, joined as a browser joins them, and printed without what opens them."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from urllib.parse import urljoin

import pytest

from vitkit.errors import ConfigError, VitkitError
from vitkit.storage.failures import StorageError
from vitkit.storage.repeats import LONGEST, TRIES, most_tries, waits
from vitkit.storage.urls import has_credentials, is_url, join, last_part, normalised, parent, redacted, scrub

SECRETS = [
    ("https://user:pw@host/a.jpg", "https://host/a.jpg"),
    ("https://host/a.jpg?X-Amz-Credential=A&X-Amz-Signature=pw", "https://host/a.jpg"),
    ("https://host/a.jpg?GoogleAccessId=a&Expires=1&Signature=pw", "https://host/a.jpg"),
    (
        "https://account.blob.core.windows.net/c/a.jpg?sv=2024&se=2026&sig=pw",
        "https://account.blob.core.windows.net/c/a.jpg",
    ),
    ("https://host/a.jpg?access_token=pw#part", "https://host/a.jpg"),
    ("s3://key:pw@bucket/a.jpg", "s3://bucket/a.jpg"),
]


@pytest.mark.parametrize(("url", "shown"), SECRETS)
def test_credentials_are_never_printed(url: str, shown: str):
    assert redacted(url) == shown
    assert has_credentials(url)
    assert not has_credentials(shown)
    assert scrub(f"GET {url} failed, see '{url}'") == f"GET {shown} failed, see '{shown}'"


@pytest.mark.parametrize(
    "name", ["photos/a@b.jpg", "C:/a.jpg", "https://host/a?id=5", "s3://bucket/a?b@c.jpg", "hf:owner/name", "a://b"]
)
def test_other_names_stay_as_they_are(name: str):
    assert redacted(name) == name
    assert not has_credentials(name)


def test_urls_are_told_from_paths():
    assert all(map(is_url, ("s3://b/a", "HTTPS://host/", "hf://datasets/o/n/a.jpg", "memory://a")))
    assert not any(map(is_url, ("s3:/b/a", "hf:o/n", "C://a", "/a://b", "a b://c", Path("a"))))
    assert normalised("s3://b//a") == "s3://b//a"
    assert normalised("./a//b") == "a/b"


@pytest.mark.parametrize("name", ["a.jpg", "b/c.jpg", "./a.jpg", "https://other/a.jpg", "a b.jpg"])
def test_names_are_joined_as_by_urljoin(name: str):
    manifest = "https://host/data/list.csv?version=1"
    assert join(parent(manifest), name) == urljoin(manifest, name).replace(" ", "%20")
    assert last_part(manifest) == "list.csv"


def test_waits_double_and_are_random_up_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    drawn = [[*waits(12)] for _ in range(200)]
    longest = [max(wait) for wait in zip(*drawn, strict=True)]
    assert len(longest) == 11
    for repeat, seconds in enumerate(longest):
        limit = min(0.5 * 2**repeat, LONGEST)
        assert 0.9 * limit < seconds <= limit  # of 200 draws, none above nine tenths: 0.9^200 is 1e-9
    monkeypatch.setenv(TRIES, "no")
    with pytest.raises(ConfigError, match=TRIES):
        most_tries()


def test_an_error_of_a_worker_keeps_its_lines():
    error = StorageError("the store is full.", try_="make room", found=["a", "b"])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is StorageError
    assert isinstance(copy, VitkitError)
    assert str(copy) == str(error)
    assert "".join(traceback.format_exception(copy)).count("make room") == 1

"""URLs as names of files: told from paths, joined, and printed without the credentials that they may hold."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote

from vitkit.errors import ConfigError

WEB = ("http", "https")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)  # two letters or more: C:/ is a drive
_FLATTENED = re.compile(r"([a-z][a-z0-9+.-]+):/+", re.IGNORECASE)  # what pathlib makes of a URL
_IN_TEXT = re.compile(r"[a-z][a-z0-9+.-]+://[^\s'\"<>]+", re.IGNORECASE)
# the parameters of presigned URLs of AWS, Google, CloudFront and Azure, and what others call such things
_SECRET = re.compile(
    r"x-amz-|x-goog-|awsaccesskeyid|googleaccessid|signature|sig$|key|token|secret|passw|pwd|auth|credential|policy",
    re.IGNORECASE,
)


def is_url(name: str | os.PathLike[str]) -> bool:
    return _SCHEME.match(os.fspath(name)) is not None


def scheme(url: str) -> str:
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def redacted(name: str) -> str:
    """Return a URL without user:password@ and without the query of a presigned one; any other name as it is."""
    match = _SCHEME.match(name)
    if match is None:
        return name
    host, slash, path = name[match.end() :].partition("/")
    host = host.rpartition("@")[2]
    if scheme(name) in WEB:
        path = path.partition("#")[0]
        path, mark, query = path.partition("?")
        path += mark + query if query and not _has_secret(query) else ""
    return match[0] + host + slash + path


def has_credentials(name: str) -> bool:
    return is_url(name) and redacted(name).partition("#")[0] != name.partition("#")[0]


def scrub(text: str) -> str:
    """Return a text in which every URL is printed without credentials."""
    return _IN_TEXT.sub(lambda match: redacted(match[0]), text)


def join(folder: str, name: str) -> str:
    """Return the path or URL of a name in a folder; an absolute name, or a URL, stands for itself."""
    if is_url(name):
        return name
    if not is_url(folder):
        return os.path.join(folder, name)
    if scheme(folder) in WEB:  # the query was that of the page or manifest alone; a name is no URL, and is not encoded
        folder, name = re.split(r"[?#]", folder, maxsplit=1)[0], quote(name, safe="/%:@!$&'()*+,;=~")
    return f"{without_slash(folder)}/{name.removeprefix('./')}"


def without_slash(folder: str) -> str:
    """Return a URL without slashes at its end; s3:// alone stays as it is, to be refused when it is used."""
    stripped = folder.rstrip("/")
    return stripped if is_url(stripped) else folder


def normalised(name: str | os.PathLike[str]) -> str:
    """Return a path as pathlib writes it, "a.jpg" for "./a.jpg"; a URL stays as it is, with both of its slashes."""
    text = os.fspath(name)
    return text if is_url(text) else str(Path(text))


def parent(url: str) -> str:
    """Return the URL of the folder that holds a file."""
    plain = re.split(r"[?#]", url, maxsplit=1)[0] if scheme(url) in WEB else url
    return plain.rstrip("/").rpartition("/")[0]


def last_part(url: str) -> str:
    """Return the name of the file or folder at the end of a URL."""
    plain = re.split(r"[?#]", url, maxsplit=1)[0] if scheme(url) in WEB else url
    return plain.rstrip("/").rpartition("/")[2]


def refuse_run_folder(path: str | os.PathLike[str]) -> None:
    """Raise an error for a run folder on an object store, which has neither locks nor renames."""
    name = os.fspath(path)
    if (match := _FLATTENED.match(name)) is None:
        return
    raise ConfigError(
        f"{redacted(_FLATTENED.sub(f'{match[1]}://', name, count=1))}: a run is trained in a folder on a file system.",
        because="its checkpoints and its record need locks and atomic renames, which object stores do not have",
        try_=[
            "--out a folder on a disk, which may be shared",
            "copy the finished run: aws s3 sync RUN s3://BUCKET/RUN",
        ],
    )


def refuse_credentials(setting: str, name: str, *, kept_in: str = "the record of a run") -> None:
    """Raise an error for a URL with credentials where they would be written to a file."""
    if has_credentials(name):
        raise ConfigError(
            f"{setting}: {redacted(name)} was given with credentials in the URL, and {kept_in} would keep them.",
            try_="the URL without them, and the store's own variables or files: AWS_*, HF_TOKEN, ~/.netrc",
        )


def _has_secret(query: str) -> bool:
    return any(_SECRET.search(name) for name, _ in parse_qsl(query, keep_blank_values=True))

"""What the pages say about the server, compared with the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from vitkit.serve.host_header import is_same_origin, parse_host
from vitkit.serve.limits import Limits

PAGE = (Path(__file__).parents[2] / "docs/serve.md").read_text(encoding="utf-8")


def test_behind_the_proxy_of_the_page_the_server_accepts_its_own_page():
    """nginx: $host is the name of the Host header without its port, and $http_host the header as it is."""
    (variable,) = re.findall(r"proxy_set_header Host (\$\w+)", PAGE)
    host = parse_host({"$host": "gpu.lab", "$http_host": "gpu.lab:8080"}[variable])
    assert host is not None
    assert is_same_origin("http://gpu.lab:8080", host)


def test_the_table_of_limits_names_all_of_them_with_their_defaults():
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) ", PAGE, re.MULTILINE))
    assert rows == {field.name: str(field.default) for field in fields(Limits)}

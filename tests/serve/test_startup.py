"""How a server starts from the command line: its mistakes, what it checks first, what it says."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vitkit.cli.main import main


def mistake(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *map(str, words)])
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_mistakes_of_the_command_line_are_said_without_a_traceback(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: Address already in use" in mistake(capsys, run, "--port", str(port))
    assert "two models are named small" in mistake(capsys, run, run)
    assert "did you mean queue" in mistake(capsys, run, "--limit", "quue=5")
    (tmp_path / "key").write_text("short")
    assert "8 or more" in mistake(capsys, run, "--key-file", tmp_path / "key")
    assert "no such address" in mistake(capsys, run, "--host", "no.such.host.invalid")
    assert "0.0.0.0 to be open" in mistake(capsys, run, "--host", "192.0.2.1")  # nobody's: RFC 5737
    assert "65535" in mistake(capsys, run, "--port", "65536")
    assert "an origin is needed" in mistake(capsys, run, "--cors", "https://example.org/path")
    assert "nowhere" in mistake(capsys, tmp_path / "nowhere", "--port", "0")
    assert "no model named" in mistake(capsys)


def test_keys_names_and_limits_are_checked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vitkit.cli.serve import key_of, names_of
    from vitkit.errors import ConfigError
    from vitkit.serve.limits import limits_of

    (tmp_path / "pets").mkdir()
    assert names_of([str(tmp_path / "pets"), "cats=runs/x", "hf:google/vit-base", "w/model.safetensors"]) == {
        "pets": str(tmp_path / "pets"),
        "cats": "runs/x",
        "vit-base": "hf:google/vit-base",
        "model": "w/model.safetensors",
    }
    for wrong in ([], ["a b=runs/x"], ["x="], ["a=1", "a=2"], ["<b>=x"]):
        with pytest.raises(ConfigError):
            names_of(wrong)
    monkeypatch.setenv("VITKIT_API_KEY", "from-the-environment")
    assert key_of(None) == "from-the-environment"
    with pytest.raises(ConfigError, match="one is needed"):
        key_of(tmp_path / "key")
    monkeypatch.setenv("VITKIT_API_KEY", "")
    with pytest.raises(ConfigError, match="cannot be used"):  # an empty one is no wish for none
        key_of(None)
    monkeypatch.delenv("VITKIT_API_KEY")
    (tmp_path / "key").write_text("from-the-file\n")
    assert (key_of(None), key_of(tmp_path / "key")) == (None, "from-the-file")
    for wrong in (["queue"], ["queue=x"], ["queue=-1"], ["queue=0"], ["queue=1.5"], ["pictures=300"], ["body=300"]):
        with pytest.raises(ConfigError, match="--limit"):
            limits_of(wrong)


def test_the_start_says_what_is_served_and_warns_where_it_is_open(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vitkit.serve.http_server.run", lambda app, service, listener, say: say() or True)
    main(["serve", str(run), f"again={run}", "--port", "0", "--host", "0.0.0.0", "--batch", "3", "--device", "cpu"])
    said, errors = capsys.readouterr()
    assert "model    small (default): mu/8 at 32 x 32 px, 10 classes" in said
    assert "model    again: mu/8" in said
    assert "computes exact: float32 on cpu" in said
    assert "up to 3 pictures together" in said
    assert "256 pictures wait at most" in said
    assert "serving  http://0.0.0.0:" in said
    assert "bound to 0.0.0.0 without a key" in errors


def test_with_a_key_the_server_answers_under_any_name(run: Path, monkeypatch: pytest.MonkeyPatch):
    """As behind a proxy; a page that has its name point here does not know the key."""
    asked: list[object] = []
    monkeypatch.setattr("vitkit.serve.app.create_app", lambda service, **options: asked.append(options["hosts"]))
    monkeypatch.setattr("vitkit.serve.http_server.run", lambda app, service, listener, say: True)
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    monkeypatch.setenv("VITKIT_API_KEY", "a-long-key")
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    assert asked == [{"localhost", "127.0.0.1", "::1"}, None]

"""Start the server from the command line: errors of the user, early checks, and the printed summary."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from vitkit.cli.main import main


def error_output(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *map(str, arguments)])
    assert exit_.value.code == 2
    return capsys.readouterr().err


def test_errors_of_the_command_line_are_printed_without_a_traceback(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert f"--port {port}: Address already in use" in error_output(capsys, run, "--port", str(port))
    assert "two models have the name small" in error_output(capsys, run, run)
    assert "did you mean queue" in error_output(capsys, run, "--limit", "quue=5")
    (tmp_path / "key").write_text("short")
    assert "8 or more" in error_output(capsys, run, "--key-file", tmp_path / "key")
    assert "no such address" in error_output(capsys, run, "--host", "no.such.host.invalid")
    assert "0.0.0.0 to listen" in error_output(
        capsys, run, "--host", "192.0.2.1"
    )  # reserved for documentation: RFC 5737
    assert "65535" in error_output(capsys, run, "--port", "65536")
    assert "is not an origin" in error_output(capsys, run, "--cors", "https://example.org/path")
    assert "nowhere" in error_output(capsys, tmp_path / "nowhere", "--port", "0")
    assert "needs a model" in error_output(capsys)


def test_keys_names_and_limits_are_checked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from vitkit.cli.serve import name_models, read_api_key
    from vitkit.errors import ConfigError
    from vitkit.serve.limits import parse_limits

    (tmp_path / "pets").mkdir()
    assert name_models([str(tmp_path / "pets"), "cats=runs/x", "hf:google/vit-base", "w/model.safetensors"]) == {
        "pets": str(tmp_path / "pets"),
        "cats": "runs/x",
        "vit-base": "hf:google/vit-base",
        "model": "w/model.safetensors",
    }
    for invalid in ([], ["a b=runs/x"], ["x="], ["a=1", "a=2"], ["<b>=x"]):
        with pytest.raises(ConfigError):
            name_models(invalid)
    monkeypatch.setenv("VITKIT_API_KEY", "from-the-environment")
    assert read_api_key(None) == "from-the-environment"
    with pytest.raises(ConfigError, match="use one of them"):
        read_api_key(tmp_path / "key")
    monkeypatch.setenv("VITKIT_API_KEY", "")
    with pytest.raises(ConfigError, match="cannot be used"):  # an empty key is a mistake, not a server without a key
        read_api_key(None)
    monkeypatch.delenv("VITKIT_API_KEY")
    (tmp_path / "key").write_text("from-the-file\n")
    assert (read_api_key(None), read_api_key(tmp_path / "key")) == (None, "from-the-file")
    for invalid in (
        ["queue"],
        ["queue=x"],
        ["queue=-1"],
        ["queue=0"],
        ["queue=1.5"],
        ["images=300"],
        ["pictures=300"],
        ["body=300"],
    ):
        with pytest.raises(ConfigError, match="--limit"):
            parse_limits(invalid)


def test_the_start_prints_the_models_and_warns_if_other_machines_can_reach_it(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vitkit.serve.http_server.run", lambda app, pool, listener, on_ready: on_ready() or True)
    main(["serve", str(run), f"second={run}", "--port", "0", "--host", "0.0.0.0", "--batch", "3", "--device", "cpu"])
    output, errors = capsys.readouterr()
    assert "model     small (default): mu/8 at 32 x 32 px, 10 classes" in output
    assert "model     second: mu/8" in output
    assert "computes  exact: float32 on cpu" in output
    assert "micro-batches of up to 3 images" in output
    assert (
        "32 MB, 64 images, 30 s per request; 50 megapixels per image, 500 per request; 256 images in the queue"
        in output
    )
    assert "serving   http://0.0.0.0:" in output
    assert "bound to 0.0.0.0 without a key" in errors


def test_the_old_name_of_the_image_limit_works_with_a_warning(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vitkit.serve.http_server.run", lambda app, pool, listener, on_ready: on_ready() or True)
    for name, warning in (
        ("pictures", "--limit pictures=N is deprecated and will be removed in the next release; use --limit images=N"),
        ("images", ""),
    ):
        main(["serve", str(run), "--port", "0", "--limit", f"{name}=7", "--device", "cpu"])
        output, errors = capsys.readouterr()
        assert "limits    32 MB, 7 images" in output
        assert errors == (f"warning   {warning}\n" if warning else "")


def test_a_server_with_a_key_accepts_any_host_name(run: Path, monkeypatch: pytest.MonkeyPatch):
    """A proxy may use any name, and a page that rebinds its name to this machine does not know the key."""
    hosts: list[object] = []
    monkeypatch.setattr("vitkit.serve.app.create_app", lambda pool, **options: hosts.append(options["hosts"]))
    monkeypatch.setattr("vitkit.serve.http_server.run", lambda app, pool, listener, on_ready: True)
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    monkeypatch.setenv("VITKIT_API_KEY", "a-long-key")
    main(["serve", str(run), "--port", "0", "--device", "cpu"])
    assert hosts == [{"localhost", "127.0.0.1", "::1"}, None]

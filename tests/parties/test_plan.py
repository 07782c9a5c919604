"""`splitlearn plan` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner, Result

from parties import plan
from parties.plan import parse_link
from splitlearn.errors import ManifestError
from splitlearn.pipeline.speeds import load_speeds, write_speeds
from tests.jobs import PAIRS, Changes, a_port, make_clinic, make_gpuhost, make_job
from tests.pipeline.planning import SPEEDS

ROOT = Path(__file__).parents[2]
FULL: Changes = {
    "cut": {"bottom": 2, "mode": "full", "train_bottom": True},
    "codec": dict.fromkeys(("activation", "output", "gradient", "input_gradient"), "fp16"),
    "schedule": {"batch_size": 32, "micro_batches": 2},
}
app = typer.Typer()
app.command()(plan.plan)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that trains everything, and speeds of a model of its own beside it."""
    path = make_job(tmp_path, changes=FULL)
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    return path


def planned(job: Path, *more: object, link: str = "20mbit/20ms") -> dict[str, Any]:
    speeds = job.parent / "speeds.toml"
    found: dict[str, Any] = json.loads(
        run(job, "--link", link, "--speeds", speeds, "--json", *more).stdout
    )
    return found


def test_a_plan_says_step_limit_bytes_error_and_class_of_both(job: Path) -> None:
    picture = job.parent / "timeline.svg"
    found = planned(job, "--svg", picture)
    given, best = found["job"], found["plan"]
    assert given["setting"]["micro_batches"] == 2
    assert best["step_s"] <= given["step_s"]
    assert best["limit_s"] <= best["step_s"]
    assert best["error"] <= given["error"] == 0.0002
    assert best["setting"]["first"] >= given["setting"]["first"] == 2
    assert best["leakage"]["text"].startswith("open")
    assert set(best["closed_forms"]) == {"alone_s", "blocking_s", "overlapped_s"}
    assert best["busy_s"]["trusted"] > 0
    assert found["warnings"] == []
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_what_interleaved_steps_would_save_is_said_and_never_chosen(job: Path) -> None:
    far = planned(job, "--keep-cuts", link="1gbit/400ms")
    assert far["plan"]["setting"]["staleness"] == 0
    assert far["interleaved"]["setting"] == {**far["plan"]["setting"], "staleness": 1}
    assert far["interleaved"]["step_s"] < 0.95 * far["plan"]["step_s"]
    shown = run(job, "--link", "1gbit/400ms", "--speeds", job.parent / "speeds.toml")
    assert "schedule.staleness = 1 would make a step" in shown.stdout
    assert "another model" in shown.stdout
    near = planned(job, "--keep-cuts", link="1mbit/0ms")
    assert near["interleaved"] is None


def test_a_job_that_interleaves_is_planned_as_it_is(tmp_path: Path) -> None:
    changes: Changes = {**FULL, "schedule": {**FULL["schedule"], "staleness": 2}}
    path = make_job(tmp_path, changes=changes)
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    found = planned(path, "--keep-cuts", link="1gbit/400ms")
    assert found["job"]["setting"]["staleness"] == found["plan"]["setting"]["staleness"] == 2
    assert found["job"]["limit_s"] <= found["job"]["step_s"] < 0.8
    assert found["interleaved"] is None


def test_a_job_that_clips_waits_for_norms_and_interleaves_nothing(tmp_path: Path) -> None:
    frozen: Changes = {**FULL, "cut": {**FULL["cut"], "train_bottom": False}}
    found = []
    for name, more in (("plain", {}), ("clips", {"optimiser": {"clip_norm": 1.0}})):
        (tmp_path / name).mkdir()
        path = make_job(tmp_path / name, changes={**frozen, **more})
        (path.parent / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
        found.append(planned(path, "--keep-cuts", link="1gbit/400ms"))
    plain, clips = found
    assert clips["job"]["step_s"] > plain["job"]["step_s"] + 0.3
    assert plain["interleaved"] is not None
    assert clips["interleaved"] is None


def test_a_job_that_keeps_outputs_is_told_its_later_epochs(tmp_path: Path) -> None:
    path = make_job(
        tmp_path, changes={**FULL, "cut": {"bottom": 2, "mode": "features", "cache": True}}
    )
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    found = planned(path)["job"]
    assert 0 < found["kept_step_s"] < found["step_s"]
    shown = run(path, "--link", "20mbit/20ms", "--speeds", tmp_path / "speeds.toml")
    assert "later epochs" in shown.stdout


def test_what_is_wanted_is_kept(job: Path) -> None:
    assert planned(job, "--error", 0.1)["plan"]["setting"]["codecs"] == ["int8"] * 4
    small = planned(job, "--error", 0.1, "--step-mb", 0.7)["plan"]
    assert small["up_bytes"] + small["down_bytes"] <= 700_000
    exact = planned(job, "--step-s", 100)["plan"]
    assert exact["error"] == 0
    kept = planned(job, "--keep-cuts")["plan"]["setting"]
    assert (kept["first"], kept["last"]) == (2, 5)


def test_a_faster_peer_gets_more_to_do_or_no_less(job: Path) -> None:
    slow, fast = (planned(job, "--peer-factor", factor, link="1gbit/1ms") for factor in (0.1, 10))
    assert fast["plan"]["step_s"] < slow["plan"]["step_s"]


def test_a_person_gets_a_table_and_a_warning(job: Path) -> None:
    speeds = job.parent / "speeds.toml"
    shown = run(job, "--link", "1kbit/20ms", "--speeds", speeds, "--step-mb", 0.00001)
    for said in ("layers [2, 5) of 6", "no setting keeps", "closed forms", "trusted preflight"):
        assert said in shown.stdout
    assert "run.deadline_s is 20" in shown.stderr
    shown = run(job, "--link", "100mbit/20ms", "--speeds", speeds)
    assert "the plan" in shown.stdout
    assert "warning" not in shown.stderr


def test_without_speeds_they_are_measured_here_and_may_be_kept(job: Path) -> None:
    kept = job.parent / "measured.toml"
    found = json.loads(
        run(
            job, "--link", "10mbit,20mbit/5ms", "--save-speeds", kept, "--threads", 1, "--json"
        ).stdout
    )
    assert found["link"]["down"]["bits_per_s"] == 20e6
    assert load_speeds(kept).layers == 4
    again = json.loads(run(job, "--link", "10mbit,20mbit/5ms", "--speeds", kept, "--json").stdout)
    assert again["job"] == found["job"]


def test_the_link_of_a_peer_that_runs_is_measured(tmp_path: Path) -> None:
    clinic = make_clinic(tmp_path, FULL)
    (clinic.parent / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    port = a_port()
    clinic.write_text(clinic.read_text().replace("127.0.0.1:1", f"127.0.0.1:{port}"))
    settings = make_gpuhost(tmp_path, port=port)
    command = [sys.executable, "-m", "parties.cli", "compute", str(settings), "--threads", "1"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as peer:
        assert peer.stderr is not None
        try:
            while "listening on port" not in peer.stderr.readline():
                assert peer.poll() is None
            shown = run(clinic, "--measure", "--speeds", clinic.parent / "speeds.toml", "--json")
            found = json.loads(shown.stdout)
            assert found["link"]["up"]["bits_per_s"] > 1e6
            assert 0 < found["link"]["up"]["delay_s"] < 5
        finally:
            peer.terminate()
            assert "Traceback" not in peer.stderr.read()


@pytest.mark.parametrize(
    "text", ["", "100mbit", "20ms", "100/20ms", "0mbit/20ms", "x100mbit/20ms", "1mbit,0mbit/1ms"]
)
def test_a_link_that_is_none_is_a_manifest_error(text: str) -> None:
    with pytest.raises(ManifestError, match="as 100mbit/20ms"):
        parse_link(text)


def test_links_are_written_in_three_units() -> None:
    rates = [parse_link(f"2.5{unit}/1.5ms").up for unit in ("kbit", "Mbit", "gbit")]
    assert [pipe.bits_per_s for pipe in rates] == pytest.approx([2500, 2.5e6, 2.5e9])
    assert rates[0].delay_s == pytest.approx(0.00075)


def test_the_link_has_to_be_given_or_measured(job: Path) -> None:
    for arguments in ((), ("--link", "1mbit/1ms", "--measure")):
        with pytest.raises(ManifestError, match="not both"):
            run(job, *arguments)


def test_a_codec_without_figures_is_a_manifest_error(job: Path) -> None:
    speeds = job.parent / "speeds.toml"
    speeds.write_text(speeds.read_text().replace('"fp16"', '"bf16"'))
    with pytest.raises(ManifestError, match="no figures of codec fp16"):
        run(job, "--link", "1mbit/1ms", "--speeds", speeds)


def test_with_link_and_speeds_no_torch_is_imported(job: Path) -> None:
    program = (
        "import sys; from parties.cli import app; "
        f"app(['plan', {str(job)!r}, '--link', '9mbit/9ms', '--keep-cuts', '--json', "
        f"'--speeds', {str(job.parent / 'speeds.toml')!r}], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


CHAIN: Changes = {"[chain]": {"party": "farm", "dial": "127.0.0.1:2", "first": 3}}


def test_a_chain_is_planned_with_its_inner_cuts_as_they_are(tmp_path: Path) -> None:
    codec = {**FULL["codec"], "inner": "int8", "inner_gradient": "fp16"}
    path = make_job(tmp_path, changes={**FULL, **CHAIN, "codec": codec})
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    found = planned(path)
    given, best = found["job"], found["plan"]
    assert given["setting"]["starts"] == best["setting"]["starts"] == [3]
    assert given["setting"]["inner"] == ["int8", "fp16"]
    assert given["limit_s"] <= given["step_s"]
    assert best["step_s"] <= given["step_s"]
    assert given["error"] == best["error"] == 0.01
    assert {"compute 1", "compute 2"} <= set(given["busy_s"])
    shown = run(path, "--link", "20mbit/20ms", "--speeds", tmp_path / "speeds.toml")
    assert "layers [2, 3) + [3, 5) of 6" in shown.stdout
    assert "inner_gradient" in shown.stdout
    assert "4 equal stages" in shown.stdout
    assert "staleness = 1 would" not in shown.stdout


def test_a_direct_chain_is_planned_as_such(tmp_path: Path) -> None:
    found = []
    for direct in (False, True):
        table = {**CHAIN["[chain]"], "direct": direct}
        codec = {**FULL["codec"], "inner": "fp16", "inner_gradient": "fp16"}
        path = make_job(tmp_path, changes={**FULL, "codec": codec, "[chain]": table})
        (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
        found.append(planned(path)["job"])
    relayed, direct = found
    assert direct["step_s"] < relayed["step_s"]
    assert direct["up_bytes"] < relayed["up_bytes"]
    assert "compute 1 > compute 2" in direct["busy_s"]


def test_a_chain_without_a_layer_for_its_last_party_is_not_planned(tmp_path: Path) -> None:
    path = make_job(tmp_path, changes={**FULL, "[chain]": CHAIN["[chain]"] | {"first": 5}})
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    with pytest.raises(ManifestError, match=r"chain\.first is 5 for farm"):
        planned(path)


def test_speeds_measured_for_a_chain_have_its_inner_codecs(tmp_path: Path) -> None:
    inner = {"inner": "transform-e0.17", "inner_gradient": "transform-e0.19"}
    path = make_job(
        tmp_path,
        changes={
            **FULL,
            "codec": {**FULL["codec"], **inner},
            "[chain]": CHAIN["[chain]"] | {"first": 2},
            "cut": {"bottom": 1, "mode": "full"},
        },
    )
    kept = tmp_path / "measured.toml"
    run(path, "--link", "10mbit/5ms", "--save-speeds", kept, "--threads", 1, "--json")
    assert set(inner.values()) <= set(load_speeds(kept).codecs)


def test_a_decoders_layers_are_not_planned_as_if_they_were_an_encoders(tmp_path: Path) -> None:
    changes: Changes = {**PAIRS, "cut": {"stack": "decoder", "top": 2}}
    path = make_job(tmp_path, changes=changes, family="bart")
    (tmp_path / "speeds.toml").write_text(write_speeds(SPEEDS), encoding="utf-8")
    with pytest.raises(
        ManifestError, match=r"cut\.stack is decoder, and the planner does not know"
    ):
        planned(path)

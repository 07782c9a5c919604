"""`splitlearn policy` as the person who owns the data runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parties.policy import SHIPPED, app
from splitlearn import policy
from splitlearn.errors import ManifestError
from splitlearn.policy import EXPLANATIONS
from splitlearn.roles import Kind, Role
from tests.jobs import Changes, make_job

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))
FEATURES: Changes = {"cut": {"mode": "features"}}
NARROW: Changes = {"cut.upper": {"method": "sft", "rank": 4}}


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def check(folder: Path, name: str, changes: Changes | None = None) -> tuple[int, str]:
    job = make_job(folder, changes=changes)
    code, text = run("check", str(folder / f"{name}.toml"), str(job))
    return code, " ".join(text.split())


def test_every_shipped_policy_is_listed_with_what_leaves_under_it_and_its_file() -> None:
    code, text = run("list")
    assert code == 0
    assert NAMES == [
        "compute",
        "compute-direct",
        "decoder",
        "demo",
        "discriminator",
        "encoder",
        "generator",
        "research",
        "standard",
        "strict",
    ]
    for name in NAMES:
        assert str(SHIPPED / f"{name}.toml") in text
    strict = text.partition("strict ")[2]
    assert "out activation, weights\n" in strict
    assert "in  output\n" in strict
    assert 'strict        Strict: modes "features" and "side" only\n' in text


@pytest.mark.parametrize("name", NAMES)
def test_what_is_shown_is_the_file_and_can_be_kept(tmp_path: Path, name: str) -> None:
    code, text = run("show", name)
    assert code == 0
    assert text == (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    (tmp_path / "policy.toml").write_text(text, encoding="utf-8")
    assert policy.load(tmp_path / "policy.toml").name == name


def test_a_policy_that_does_not_ship_is_answered_with_those_that_do() -> None:
    with pytest.raises(
        ManifestError,
        match="compute, compute-direct, decoder, demo, discriminator, encoder, generator, research",
    ):
        run("show", "../cli")


def test_a_job_that_its_policy_allows_ends_well_and_says_what_leaves(tmp_path: Path) -> None:
    code, text = check(tmp_path, "strict", FEATURES)
    assert code == 0
    assert "REFUSED" not in text
    assert "activation out 128 x 32 int8+zstd, 5,842 bytes activation allowed" in text
    assert "What leaves for gpuhost:" in text
    assert "hidden states, 32 numbers a token" in text
    assert "can read the text from them" in text
    assert "What stays: texts, token ids, labels" in text
    assert "gradient" not in text
    assert "for a preflight to measure" in text


def test_mode_full_is_told_once_that_labels_can_be_read(tmp_path: Path) -> None:
    code, text = check(tmp_path, "standard", NARROW)
    assert code == 0
    assert text.count("the labels can be read from them") == 1
    assert "gradients, 4 numbers a token" in text


def test_what_would_be_refused_is_named_with_its_rule_and_remedy(tmp_path: Path) -> None:
    code, text = check(tmp_path, "strict")
    assert code == 3
    assert "gradient out 128 x 32 fp16, 9,345 bytes none REFUSED" in text
    assert "REFUSED no-rule: the job needs gradient to go out" in text
    assert text.count("-> change the job") == 1
    # What does not leave is not told as leaving.
    assert "gradients, " not in text
    changes: Changes = {**FEATURES, "data": {"max_length": 1_000}}
    code, text = check(tmp_path, "strict", changes)
    assert code == 3
    assert (
        "activation.max_length: policy strict refuses activation to a compute party: 1000" in text
    )
    assert "lower data.max_length" in text


def test_a_message_that_may_never_come_is_told_and_not_counted(tmp_path: Path) -> None:
    job = make_job(tmp_path, changes=FEATURES)
    text = (tmp_path / "strict.toml").read_text()
    start = text.index("# Weights of the layers")
    end = text.index("# The hidden state at the lower cut")
    (tmp_path / "lean.toml").write_text(text[:start] + text[end:])
    code, said = run("check", str(tmp_path / "lean.toml"), str(job))
    assert code == 0
    assert "refused if it comes no-rule: the job needs weights to go out" in said


def test_a_compute_partys_policy_is_told_for_what_it_is(tmp_path: Path) -> None:
    code, text = check(tmp_path, "compute")
    assert code == 3
    assert "Policy compute has no rule about a compute party" in text


def test_a_budget_that_the_job_outlasts_is_told(tmp_path: Path) -> None:
    changes: Changes = {**FEATURES, "schedule": {"epochs": None, "steps": 9_000_000}}
    code, text = check(tmp_path, "strict", changes)
    assert code == 0
    assert (
        "Budget: max_run_bytes of rule activation lasts for 5,881,502 of the job's 9,000," in text
    )


def test_the_parties_of_a_chain_draw_on_one_budget(tmp_path: Path) -> None:
    chain = {"party": "farm", "dial": "127.0.0.1:2", "first": 2}
    schedule = {"epochs": None, "steps": 9_000_000}
    _, text = check(tmp_path, "strict", {**FEATURES, "schedule": schedule, "[chain]": chain})
    assert text.count("rule activation lasts for 2,940,751 of the job's 9,000,000 steps") == 2


def test_what_cannot_be_known_of_a_hub_model_is_said(tmp_path: Path) -> None:
    code, text = check(tmp_path, "strict", {**FEATURES, "model": {"path": "someone/some-model"}})
    assert code == 0
    assert "128 x ? int8+zstd" in text
    assert "Not known: the model someone/some-model" in text


def test_labels_that_the_job_hides_are_told_so(tmp_path: Path) -> None:
    _, text = check(tmp_path, "standard", {**NARROW, "privacy": {"label_epsilon": 2.0}})
    assert "at any rank and codec, but for what [privacy] of the job hides." in text


def test_files_with_a_mistake_are_the_users(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    for words in ((str(tmp_path / "none.toml"), str(job)), (str(job), str(job))):
        with pytest.raises(ManifestError):
            run("check", *words)


def test_all_rules_are_explained_at_once_or_one_by_one() -> None:
    code, text = run("explain")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == list(EXPLANATIONS)
    code, text = run("explain", "content.whole")
    assert code == 0
    assert text.startswith("content.whole\n  forbids  whole numbers")
    with pytest.raises(ManifestError, match="did you mean"):
        run("explain", "content.wole")


def test_a_rule_of_ones_own_is_explained_from_the_policy() -> None:
    file = str(SHIPPED / "strict.toml")
    code, text = run("explain", "activation.max_columns", "--policy", file)
    assert code == 0
    assert "forbids  more numbers a token" in text
    assert "rule activation of policy strict: activation to a compute party" in text
    assert "max_columns         1,024" in text
    assert "max_rows" not in text
    code, text = run("explain", "activation.linkable", "--policy", file)
    assert "linkable            no" in text
    code, text = run("explain", "activation", "--policy", str(SHIPPED / "research.toml"))
    assert "linkable            yes" in text
    assert "generating          yes" in text
    code, text = run("explain", "output", "--policy", file)
    assert "output from a compute party" in text
    assert "max_row_norm        1000000.0" in text
    assert "codecs              transform-*, pca-transform-*, int8+zstd" in text
    with pytest.raises(ManifestError):
        run("explain", "gradient", "--policy", file)


def test_the_page_about_policies_says_of_each_what_its_file_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    for name in ("strict", "standard", "research"):
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", page, re.MULTILINE)
        mode, gradients, bottom, _ = row.split(" | ")
        rules = policy.load(SHIPPED / f"{name}.toml")
        gradient = rules.rule_for(Kind.GRADIENT, direction="out", peer=Role.COMPUTE)
        back = rules.rule_for(Kind.INPUT_GRADIENT, direction="in", peer=Role.COMPUTE)
        assert (gradient is None) is (gradients == "no") is (mode == "`features`, `side`")
        assert (back is None) is (bottom == "no")
        if "rank" in gradients:
            assert gradient is not None
            assert f"rank {gradient.max_columns} at most" in gradients
    (rule,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "policy.toml").write_text(f'name = "page"\n{rule}', encoding="utf-8")
    shown = policy.load(tmp_path / "policy.toml").rules[0]
    assert {f"{field} = " in rule for field in shown.__struct_fields__[:-3]} == {True}


def test_none_of_it_needs_torch(tmp_path: Path) -> None:
    job = make_job(tmp_path, changes=FEATURES)
    program = (
        "import sys; from pathlib import Path; from parties.policy import *; list_shipped(); "
        f"show('strict'); explain('', None); check(Path({str(tmp_path / 'strict.toml')!r}), "
        f"Path({str(job)!r})); "
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_each_party_of_a_chain_is_told_and_one_refusal_is_enough(tmp_path: Path) -> None:
    chain = {"party": "farm", "dial": "127.0.0.1:2", "first": 2}
    code, said = check(tmp_path, "strict", {"cut": {"mode": "features"}, "[chain]": chain})
    assert code == 0
    for party in ("gpuhost", "farm"):
        assert f"mode features, party {party}" in said
        assert f"What leaves for {party}:" in said
    narrow = {"method": "sft", "rank": 4}
    changes = {"cut": {"mode": "full"}, "cut.upper": narrow, "[chain]": chain}
    code, said = check(tmp_path, "standard", changes)
    assert code == 3
    first, last = said.split("What leaves for farm:")
    assert "REFUSED no-rule" not in first
    assert "REFUSED no-rule: the job needs input_gradient to go in" in last

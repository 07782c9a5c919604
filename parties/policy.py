"""The data holder's policy: what ships, what a rule means, what a job would be refused for. No torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from splitlearn.manifest import Job
    from splitlearn.policy import Explanation, Plan, Policy, Rule, Verdict

__all__ = ["SHIPPED", "app", "check", "explain", "list_shipped", "show"]

SHIPPED = Path(__file__).parent / "policies"

app = typer.Typer(
    no_args_is_help=True,
    help=(
        "Choose, read and check a policy: the list of what may leave.\n\n"
        "  splitlearn policy show strict > policy.toml\n\n"
        "  splitlearn policy check policy.toml job.toml\n\n"
        "docs/policies.md explains how to read and change one."
    ),
)


@app.command("list")
def list_shipped() -> None:
    """Show the policies that come with this program, and where their files lie.

    \b
    Example:
        splitlearn policy list
    """
    from splitlearn import policy

    for path in sorted(SHIPPED.glob("*.toml")):
        rules = policy.load(path).rules
        ways = {
            way: sorted(
                {kind.value for rule in rules if rule.direction == way for kind in rule.kinds}
            )
            for way in ("out", "in")
        }
        typer.echo(f"{path.stem:<14}{_purpose(path)}")
        for way, kinds in ways.items():
            told = [kind for kind in kinds if kind in _BEARING]
            typer.echo(f"{'':<14}{way:<4}{', '.join(told)}")
        typer.echo(f"{'':<14}{path}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="A policy's name, as `splitlearn policy list` has it.")
    ],
) -> None:
    """Print a policy that comes with this program, to be kept and changed as your own.

    \b
    Example:
        splitlearn policy show strict > policy.toml
    """
    from splitlearn.errors import ManifestError

    names = sorted(path.stem for path in SHIPPED.glob("*.toml"))
    if name not in names:
        raise ManifestError(f"there is no policy {name!r}; those that ship are {', '.join(names)}")
    typer.echo((SHIPPED / f"{name}.toml").read_text(encoding="utf-8"), nl=False)


@app.command()
def check(
    policy_file: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy file.")],
    job_file: Annotated[Path, typer.Argument(metavar="JOB", help="The job file.")],
) -> None:
    """Say before a run what a policy would refuse of a job, and what would leave at all.

    \b
    Example:
        splitlearn policy check policy.toml job.toml

    Each message is judged at the largest that the job allows. Needs no network, opens no data and
    starts nothing. What is measured of a tensor's values (splitlearn policy explain) is judged when
    the run is under way.

    \b
    Exit code: 0 nothing would be refused, 2 a file is wrong, 3 something would be refused.
    """
    from splitlearn import policy
    from splitlearn.errors import RefusedError
    from splitlearn.manifest import load_job

    rules = policy.load(policy_file)
    job = load_job(job_file)
    refused = False
    for plan in policy.plans_of_job(job):
        verdicts = policy.foresee(rules, plan)
        whom = f", party {plan.party}" if job.chain else ""
        title = f"policy {rules.name}, job {job.run.name}, mode {plan.mode}{whom}"
        _print_table(verdicts, title=title)
        for line in _leaves(verdicts, plan=plan, job=job, rules=rules):
            typer.echo(line)
        _print_remedies(verdicts)
        refused |= any(verdict.certain and verdict.refusals for verdict in verdicts)
    if refused:
        raise typer.Exit(RefusedError.exit_code)


@app.command()
def explain(
    rule: Annotated[
        str,
        typer.Argument(help="A rule's name, as it stands in an error or in the log; all if none."),
    ] = "",
    policy_file: Annotated[
        Path | None, typer.Option("--policy", help="Your policy: says what its own rule allows.")
    ] = None,
) -> None:
    """Say what a rule forbids, why, and what to do when it stopped a run.

    \b
    Examples:
        splitlearn policy explain
        splitlearn policy explain content.whole
        splitlearn policy explain activation.max_columns --policy policy.toml
        splitlearn policy explain activation --policy policy.toml
    """
    from splitlearn import policy

    rules = policy.load(policy_file) if policy_file is not None else None
    if not rule:
        for name, explained in policy.EXPLANATIONS.items():
            typer.echo(f"{name:<32}{explained.forbids}")
        return
    owner, _, limit = rule.partition(".")
    own = next((each for each in rules.rules if each.id == owner), None) if rules else None
    if own is None or limit:
        _print_explanation(rule, policy.explanation(rule))
    if own is not None and rules is not None:
        _print_rule(own, limit=limit, name=rules.name)


# Kinds whose tensors matter to whoever reads a list of policies.
_BEARING = (
    *("activation", "gradient", "output", "input_gradient", "weights", "ids"),
    "samples",
)

# What each kind that leaves carries, in plain words.
_CARRIES = {
    "offer": "the job as the peer has to know it: run name, layer type and sizes, cut, codecs, "
    "optimiser, schedule, seed",
    "weights": "weights of the layers between the cuts, if the peer has not the same ones; never "
    "embeddings, head, first or last layers",
    "activation": "hidden states, {columns} numbers a token, and the lengths of the texts. Whoever "
    "owns the public model can read the text from them",
    "gradient": "gradients, {columns} numbers a token",
    "resume": "the number of the step to go on from",
    "checkpoint": "the number of a step",
    "settle": "a signed head of the log, and a receipt",
    "countersigned": "a signature on the peer's head",
    "finish": "nothing beside its kind",
}


def _purpose(path: Path) -> str:
    """The first sentence of a policy file's opening comment."""
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        words.append(line[2:])
    return " ".join(words).partition(". ")[0].rstrip(".")


def _print_table(verdicts: "tuple[Verdict, ...]", *, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("message", "way", "at its largest", "rule", "verdict"):
        table.add_column(heading, overflow="fold")
    for verdict in verdicts:
        facts = verdict.facts
        table.add_row(
            facts.kind.value,
            facts.direction,
            _largest(verdict),
            verdict.rule.id if verdict.rule is not None else "none",
            "allowed" if not verdict.refusals else _mark(verdict),
            style="bold red" if verdict.refusals and verdict.certain else "",
        )
    Console(highlight=False, emoji=False, markup=False).print(table)


def _print_remedies(verdicts: "tuple[Verdict, ...]") -> None:
    from splitlearn import policy

    remedies: dict[str, list[str]] = {}
    for verdict in verdicts:
        for refusal in verdict.refusals:
            remedy = policy.explanation(refusal.rule).remedy
            remedies.setdefault(remedy, []).append(f"{_mark(verdict)} {refusal.rule}: {refusal}")
    for remedy, sentences in remedies.items():
        typer.echo("\n".join(("", *sentences, f"  -> {remedy}")))


def _mark(verdict: "Verdict") -> str:
    return "REFUSED" if verdict.certain else "refused if it comes"


def _largest(verdict: "Verdict") -> str:
    facts = verdict.facts
    if not facts.codec:
        return ""
    shape = f"{facts.rows:,} x {facts.columns or '?'}"
    return f"{shape} {facts.codec}{f', {facts.wire_bytes:,} bytes' if facts.wire_bytes else ''}"


def _leaves(
    verdicts: "tuple[Verdict, ...]", *, plan: "Plan", job: "Job", rules: "Policy"
) -> "Iterator[str]":
    """What goes out in plain words, what stays, and what could not be told."""
    from splitlearn import policy

    yield ""
    yield f"What leaves for {plan.party}:"
    for verdict in verdicts:
        facts = verdict.facts
        if facts.direction == "out" and not verdict.refusals:
            says = _CARRIES.get(facts.kind.value, "see docs/wire.md")
            yield f"  {facts.kind.value}: {says.format(columns=facts.columns or 'all its')}"
    yield "What stays: texts, token ids, labels, tokeniser, embeddings, first and last layers, head."
    if plan.sends_gradients:
        noisy = job.privacy.label_epsilon is not None or job.privacy.gradient_noise is not None
        but = ", but for what [privacy] of the job hides" if noisy else ""
        yield (
            f"Mode {plan.mode} sends gradients: the labels can be read from them, at any rank and "
            f"codec{but}."
        )
    if not any(verdict.rule for verdict in verdicts):
        yield (
            f"Policy {rules.name} has no rule about a compute party: a trusted party's policy is "
            "wanted here, and this may be a compute party's."
        )
    for verdict in verdicts:
        # All parties of a chain draw on one budget.
        messages = job.schedule.micro_batches * len(job.peers)
        lasts = policy.lasts(verdict, messages=messages)
        if lasts is not None and job.schedule.steps is not None and lasts < job.schedule.steps:
            assert verdict.rule is not None
            yield (
                f"Budget: max_run_bytes of rule {verdict.rule.id} lasts for {lasts:,} of the job's "
                f"{job.schedule.steps:,} steps, if every one is the largest."
            )
    if rules.leakage is not None:
        yield "Limits of [leakage] are for a preflight to measure; nothing here measures them."
    for sentence in plan.unknown:
        yield f"Not known: {sentence}."


def _print_explanation(rule: str, explained: "Explanation") -> None:
    typer.echo(f"{rule}\n  forbids  {explained.forbids}\n  because  {explained.why}")
    typer.echo(f"  do       {explained.remedy}")


def _print_rule(rule: "Rule", *, limit: str, name: str) -> None:
    """What a policy's own rule says, all of it or one limit."""
    way = "to" if rule.direction == "out" else "from"
    kinds = ", ".join(kind.value for kind in rule.kinds)
    typer.echo(f"rule {rule.id} of policy {name}: {kinds} {way} a {rule.peer.value} party")
    for field in (limit,) if limit else rule.__struct_fields__[_LIMITS_FROM:]:
        value = getattr(rule, field)
        if isinstance(value, tuple):
            value = ", ".join(value) or "none"
        elif field in ("linkable", "generating"):
            value = "yes" if value is True else "no"
        elif isinstance(value, int):
            value = f"{value:,}"
        typer.echo(f"  {field:<20}{'no limit' if value is None else value}")


# The fields of a rule before it are said in the sentence above them.
_LIMITS_FROM = 4

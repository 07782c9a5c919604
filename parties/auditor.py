"""The auditor's commands: what anybody can check of a log without trusting who wrote it.

No torch but in `attack`.
Each command is a file of its own, `audit_*.py`.
"""

import typer

from parties.audit_attack import attack
from parties.audit_judge import judge_of
from parties.audit_reconcile import reconcile
from parties.audit_redact import redact
from parties.audit_report import export, report
from parties.audit_show import show
from parties.audit_verify import verify

__all__ = ["app", "judge_of"]

app = typer.Typer(
    no_args_is_help=True,
    help="Check what was sent, from logs alone.\n\nExample:  splitlearn audit verify out/demo/trusted/audit",
)


@app.callback()
def audit() -> None:
    """Check what was sent, from logs alone."""


app.command("verify")(verify)
app.command("reconcile")(reconcile)
app.command("show")(show)
app.command("redact")(redact)
app.command("report")(report)
app.command("export")(export)
app.command("attack")(attack)

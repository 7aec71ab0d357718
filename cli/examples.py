"""Holds example command lines for each command, which end its help."""

from __future__ import annotations

from typing import Final

#: Example command lines, by command.
EXAMPLES: Final = {
    "ask": (
        "steptape ask stop digits --reason 'the loss has diverged'",
        "steptape ask save digits --reason 'before the node goes down'",
    ),
    "backtest": (
        "steptape backtest overfitting --store runs",
        "steptape backtest policy.yaml digits --store runs --set spike=2.5 --html report.html",
        "steptape backtest loss_spike --history logs --rename train/loss=loss",
    ),
    "certify": (
        "steptape certify policy.yaml --store runs --set patience=1:20:1 --risk 'regret > 1%' --at-most 10%",
        "steptape certify --check certificate.json --store runs",
    ),
    "check": ("steptape check policy.yaml --store runs",),
    "compare": (
        "steptape compare base wider --store runs",
        "steptape compare group=base config.lr=0.003 --store runs --at step=1000 --at-most-tries 20 --min-effect 1%",
    ),
    "delete": ("steptape delete --store runs --older-than 90d", "steptape delete digits --store runs"),
    "demo": ("steptape demo", "steptape demo --store digits --torch"),
    "diff": ("steptape diff policy.yaml policy.yaml --set-new spike=2.5 --store runs",),
    "docs": ("steptape docs",),
    "doctor": ("steptape doctor --store runs", "steptape doctor runs/20260102T030405-5ea1ed --json"),
    "export": (
        "steptape export digits --store runs --output digits.csv",
        "steptape export digits --store runs | jq .metrics.loss",
    ),
    "health": ("steptape health digits --store runs", "steptape health digits --store runs --json | jq .state"),
    "import": (
        "steptape import auto logs --store runs",
        "steptape import text out.log --store runs --pattern '<(?P<step>\\d+)> loss (?P<loss>\\S+)'",
    ),
    "push": ("steptape push runs https://runs.example.org --follow", "steptape push runs file:///mnt/disk/runs"),
    "query": ("steptape query 'SELECT run_id, min(eval_loss) FROM evals GROUP BY run_id' --store runs",),
    "replay": (
        "steptape replay overfitting digits --store runs",
        "steptape export digits --store runs | steptape replay policy.yaml - --json",
    ),
    "runs": ("steptape runs", "steptape runs --store runs --json | jq -r .run_id"),
    "samples": ("steptape samples digits --store runs --step 300",),
    "seal": ("steptape seal --store runs",),
    "serve": ("steptape serve runs", "steptape serve runs --policies policies --port 0"),
    "show": ("steptape show digits --store runs", "steptape show digits --store runs --plot eval_loss --plot lr"),
    "sweep": (
        "steptape sweep policy.yaml --store runs --set spike=1.5:5:0.5",
        "steptape sweep policy.yaml --store runs --set spike=1.5:5:0.5 --split families",
    ),
    "tail": (
        "steptape tail digits --store runs",
        "steptape tail digits --store runs --kind decision --json | jq .attrs.controller",
    ),
    "test": ("steptape test policy.test.yaml", "steptape test loss_spike"),
    "verify": ("steptape verify digits --store runs", "steptape verify --store runs"),
}


def epilog(command: str) -> str | None:
    """Format the examples of a command for the end of its help; None if it has none."""
    lines = EXAMPLES.get(command, ())
    # The control character stops the help formatter from rewrapping the lines.
    return "\b\n" + "\n".join(("Examples:", *(f"  {line}" for line in lines))) if lines else None

"""The offline side: the rule engine over past runs, verified, judged and summed up. Nothing here acts on anything.

All of it takes a third of a second to load. Who needs a part, as the server does, loads that part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..store.late_loading import loaded_late

if TYPE_CHECKING:
    from .aggregation import aggregate, comparison
    from .backtesting import ASSUMPTIONS, Backtest, backtest
    from .baselines import BASELINES, Baseline, baseline_policy
    from .cache import Cache
    from .checking import findings_against
    from .difference_report import difference_json, difference_lines
    from .differing import PolicyDifference, RunDifference, StopChange, difference
    from .identity import RunIdentity, SeqRange
    from .incidents import Incident, Labels, read_labels
    from .mapping import Progress
    from .objective import Mode, Objective, declared_objective
    from .page import report_page
    from .replaying import Judged, Replay, replay
    from .report import report_json
    from .results import Excluded, Outlay, RunResult
    from .summary import headline, summary_lines
    from .sweep_outcomes import Outcomes
    from .sweep_task import SweptRun
    from .sweep_variants import Variant
    from .sweeping import Sweep, sweep
    from .tables import COMPARISON_HEADINGS, TABLE_HEADINGS, comparison_rows, table_rows
    from .validity import Validity
    from .verification import Difference, Verification, verify

__all__ = [
    "ASSUMPTIONS",
    "BASELINES",
    "COMPARISON_HEADINGS",
    "TABLE_HEADINGS",
    "Backtest",
    "Baseline",
    "Cache",
    "Difference",
    "Excluded",
    "Incident",
    "Judged",
    "Labels",
    "Mode",
    "Objective",
    "Outcomes",
    "Outlay",
    "PolicyDifference",
    "Progress",
    "Replay",
    "RunDifference",
    "RunIdentity",
    "RunResult",
    "SeqRange",
    "StopChange",
    "Sweep",
    "SweptRun",
    "Validity",
    "Variant",
    "Verification",
    "aggregate",
    "backtest",
    "baseline_policy",
    "comparison",
    "comparison_rows",
    "declared_objective",
    "difference",
    "difference_json",
    "difference_lines",
    "findings_against",
    "headline",
    "read_labels",
    "replay",
    "report_json",
    "report_page",
    "summary_lines",
    "sweep",
    "table_rows",
    "verify",
]

__getattr__ = loaded_late(
    __name__,
    {
        "aggregation": ["aggregate", "comparison"],
        "backtesting": ["ASSUMPTIONS", "Backtest", "backtest"],
        "baselines": ["BASELINES", "Baseline", "baseline_policy"],
        "cache": ["Cache"],
        "checking": ["findings_against"],
        "difference_report": ["difference_json", "difference_lines"],
        "differing": ["PolicyDifference", "RunDifference", "StopChange", "difference"],
        "identity": ["RunIdentity", "SeqRange"],
        "incidents": ["Incident", "Labels", "read_labels"],
        "mapping": ["Progress"],
        "objective": ["Mode", "Objective", "declared_objective"],
        "page": ["report_page"],
        "replaying": ["Judged", "Replay", "replay"],
        "report": ["report_json"],
        "results": ["Excluded", "Outlay", "RunResult"],
        "summary": ["headline", "summary_lines"],
        "sweep_outcomes": ["Outcomes"],
        "sweep_task": ["SweptRun"],
        "sweep_variants": ["Variant"],
        "sweeping": ["Sweep", "sweep"],
        "tables": ["COMPARISON_HEADINGS", "TABLE_HEADINGS", "comparison_rows", "table_rows"],
        "validity": ["Validity"],
        "verification": ["Difference", "Verification", "verify"],
    },
)

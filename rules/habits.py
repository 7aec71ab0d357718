"""Words and signs that people bring from other languages and tools, each with what a policy writes instead.

Data alone. A value is the right word, or a sentence. Keys that are words are in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: Functions. In a sentence, ``{}`` stands for the arguments of the call.
FUNCTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("avg", "average", "nanmean", "reduce_mean", "rolling_mean"), "mean"),
    **dict.fromkeys(("running_mean", "moving_average", "moving_avg", "sma", "avg_over_time"), "mean"),
    **dict.fromkeys(("stdev", "stddev", "sd", "rolling_std", "nanstd", "stddev_over_time"), "std"),
    **dict.fromkeys(("variance", "rolling_var"), "var"),
    **dict.fromkeys(("minimum", "amin", "lowest", "rolling_min", "nanmin", "min_over_time"), "min"),
    **dict.fromkeys(("maximum", "amax", "highest", "rolling_max", "nanmax", "max_over_time"), "max"),
    **dict.fromkeys(("cummax", "running_max"), "peak"),
    **dict.fromkeys(("cummin", "running_min"), "trough"),
    **dict.fromkeys(("ewm", "ewma", "exp_moving_average"), "ema"),
    **dict.fromkeys(("diff", "difference", "change", "increase"), "delta"),
    **dict.fromkeys(("shift", "prev", "previous", "offset"), "lag"),
    **dict.fromkeys(("size", "length"), "len"),
    **dict.fromkeys(("consecutive", "in_a_row", "run_length", "sustained"), "streak"),
    **dict.fromkeys(("rolling", "window"), "Write mean(loss, 50), or the like."),
    **dict.fromkeys(("absent_over_time", "missing", "no_data"), "Write absent(loss, steps=500)."),
    **dict.fromkeys(("fresh", "stale", "timestamp"), "Write age(loss), the steps since the newest value."),
    **dict.fromkeys(("changes", "resets"), "Write sum(delta(loss) != 0, last=50)."),
    **dict.fromkeys(("ever", "once"), 'Write peak(loss > 2) == 1, or times_fired("name") > 0 of a controller.'),
    "always": "Write trough(loss > 2) == 1.",
    "since": 'Write streak(loss <= 2) for values, or steps_since("name") of a controller.',
    "predict_linear": 'Write loss + 500 * slope(loss, 50, per="step").',
    "cumsum": "A sum needs a window, as in sum(loss, steps=500).",
    **dict.fromkeys(("clip", "clamp_min", "clamp_max"), "clamp"),
    "sgn": "sign",
    "fired": "Write times_fired({}) > 0.",
    "holding": "Write streak({}) > 0.",
    "true_now": "Write streak({}) > 0, which counts this event's result of a controller above.",
    "changed": "Write age({}) == 0, or use the trigger on_state:NAME.",
    **dict.fromkeys(
        ("raised", "is_raised", "cleared", "resolved"),
        "Write a state, as in states: {level: [{high: loss > 3}, {low: loss < 2}]}, and level == 'high' in the rule.",
    ),
    **dict.fromkeys(("isnan", "is_nan"), "Write not isfinite({}), or {} != {} for NaN alone."),
    **dict.fromkeys(("where", "iff", "ifelse", "coalesce", "fillna"), "Write a if condition else b."),
    **dict.fromkeys(("median_abs_deviation", "mad_over_time"), "mad"),
    **dict.fromkeys(("first_value", "baseline"), "initial"),
    **dict.fromkeys(("now", "time"), "Rules read no clock. Write elapsed_s, the seconds of training."),
    "sin": "Write cos(x - 1.5707963267948966).",
    **dict.fromkeys(
        ("irate", "deriv", "derivative", "gradient", "trend"),
        "Write slope(loss, 50) for the change per value, or rate(loss) for the newest change per step.",
    ),
    **dict.fromkeys(
        ("percentile", "nanpercentile", "nanquantile"), "Write quantile(loss, 50, q=0.95), with q from 0 to 1."
    ),
    "quantile_over_time": "quantile",
    "z_score": "zscore",
    **dict.fromkeys(("isinf", "is_inf"), "Write not isfinite(loss), which is true for NaN, too."),
    **dict.fromkeys(("isnull", "isna", "is_null"), "Write len(loss) == 0 for a series without a value."),
    "is_finite": "isfinite",
    **dict.fromkeys(("active", "firing"), 'Write streak("name") > 0.'),
    **dict.fromkeys(
        ("is_fraction_point", "fraction_point", "every_fraction", "at_fraction", "at_progress"),
        "Write milestone(at=0.25).",
    ),
    **dict.fromkeys(("every_percent", "percent"), "Write milestone(every=0.05) for every 5 percent of the run."),
    **dict.fromkeys(("pow", "power"), "Write loss ** 2."),
    **dict.fromkeys(("fabs", "absolute"), "abs"),
    "ceil": "math_ceil",
    "floor": "math_floor",
    "trunc": "math_trunc",
    **dict.fromkeys(("log10", "log2"), "Write log(x) / log(10) for the logarithm to the base 10."),
    **dict.fromkeys(("rand", "randint", "random"), "Rules are deterministic: the same events give the same decisions."),
}

#: Modules whose functions a rule calls without the module.
MODULES: Final = frozenset({"jnp", "math", "np", "numpy", "pd", "scipy", "statistics", "tf", "torch"})

#: Signs that no rule can hold outside a text, as patterns in the order in which they are tried at one place.
SIGNS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (r"&&|\bAND\b", "Write 'and'."),
        (r"\|\||\bOR\b", "Write 'or'."),
        (r"!(?!=)|\bNOT\b", "Write 'not'."),
        (r"===", "Write ==."),
        (r"=>|≥", "Write >=."),
        (r"=<|≤", "Write <=."),
        (r"<>|≠", "Write !=."),
        (r"[\u00d7\u2715]", "Write *."),
        (r"÷", "Write /."),
        (r"[\u2010-\u2015\u2212]", "Write the minus sign of the keyboard."),
        (r"[\u2018-\u201f]", "Write the straight quotes of the keyboard."),
        (r"\?", "Write 'a if condition else b'."),
        (r"[A-Za-z_][\w/]*/\*(?=\s*(?:$|[<>=!),]))", 'Write series("grad_norm/*") for all series with such a name.'),
        (
            r"^if\b|\bthen\b",
            "The rule is the condition alone. What to do is in 'operations', or before a sentence's 'if'.",
        ),
        (r"\d%(?=\s*(?:$|[),<>=!]|and\b|or\b|else\b))", "Write a fraction, as in 0.05 for 5%."),
        (r"\b\d+(?:\.\d+)?x\b", "Write a product, as in 2 * loss."),
        (r"\b\d+(?:\.\d+)?[kKM]\b", "Write all digits, as in 1000."),
        (
            r"\b\d+(?:\.\d+)?(?:ms|s|sec|m|min|h|d)\b",
            "A number has no unit. A window counts values, steps, epochs or seconds, as in mean(loss, seconds=300).",
        ),
        (r"\bhas\s+improved\b|\bimproves\b", "Write improved(eval_loss)."),
        (
            r"\b(?:has\s+|does\s+|did\s+|is\s+)?not\s+improv\w+\b(?!\()",
            "Write streak(not improved(loss)) >= 3, or in a sentence 'loss has not improved for 3 steps'.",
        ),
        (
            r"(?<=[\w)] )(?:rises?|rising|increases?|falls?|falling|drops?|decreases?|grows?)\b",
            "Write slope(loss, 50) > 0.",
        ),
        (r"(?<=[\w)] )(?:above|exceeds|over|greater than|more than)\b", "Write >."),
        (r"(?<=[\w)] )(?:below|under|less than)\b", "Write <."),
        (r"(?<=[\w)] )equals\b", "Write ==."),
        (r"(?<=[\w)] )unless\b", "Write 'if not'."),
        (r"\bfor\s+\d\S*\s*\w*$", "At the end of a sentence write 'for 3 steps' or 'for 3 evaluations'."),
        (r"\bat\s+most\b.*", "At the end of a sentence write 'at most every 50 steps'."),
        (r"\bafter\b.*", "At the end of a sentence write 'after 100 steps' or 'after 10%'."),
        (r"\b(?:twice|\w+ times)$", "Write 'once', or 'at most every 50 steps'."),
        (r"(?:[<>=+\-*/%]|\b(?:and|or|not))\s*$", "A value is missing after it."),
    )
)

#: The first of two words with nothing between them.
_WORD: Final = r"(?!(?:and|or|not|in|is|if|else|for)\b)[A-Za-z_]\w*"
TWO_WORDS: Final = re.compile(rf"(?<![\w.]){_WORD}(?=\s+{_WORD})")

#: Names of constants, which a rule reads as series. (For NaN and infinity see the next table.)
CONSTANTS: Final[Mapping[str, str]] = {
    "true": "Write True.",
    "false": "Write False.",
    **dict.fromkeys(("null", "nil"), "Write len(loss) == 0 for a series without a value."),
    "member": "Only a controller with for_each has a member.",
}
#: Names of numbers that are not finite, each with the test for it.
NOT_FINITE: Final[Mapping[str, str]] = {
    **dict.fromkeys(("nan", "inf", "infinity"), "not isfinite({})"),
}

#: Arguments that give the length of a window, and units of time in their place.
WINDOW_LENGTHS: Final = frozenset(
    {"k", "length", "n", "period", "periods", "size", "span", "values", "win", "window", "window_size"}
)
WINDOW_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("minutes", "hours", "time", "duration"), "Time is counted in seconds, as in seconds=300."),
    **dict.fromkeys(("min_count", "min_periods", "min_samples", "min_values"), "min"),
    **dict.fromkeys(("p", "percentile", "quantile"), "q"),
}

#: Arguments of milestones, and the units of a run's length.
MILESTONE_ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("each", "n", "step", "interval", "period"), "every"),
    **dict.fromkeys(("fraction", "fractions", "share", "shares", "points", "progress"), "at"),
    **dict.fromkeys(("unit", "units", "by", "per"), "of"),
    **dict.fromkeys(
        ("steps", "epochs", "samples", "tokens"),
        'A milestone is a share of the run, as in milestone(every=0.05, of="tokens").',
    ),
}
MILESTONE_UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("updates", "update", "max_steps", "iterations"), "steps"),
    **dict.fromkeys(("seconds", "time", "hours", "minutes"), "A run declares no length in time."),
}

#: For kinds of events, and for triggers.
KINDS: Final[Mapping[str, str]] = {
    "on_state": "Write on_state:NAME for the changes of a state.",
    **dict.fromkeys(("step", "steps"), "step_end"),
    **dict.fromkeys(("on_step", "on_steps"), "on_step_end"),
}

#: Actions of an operation, without ``should_``.
ACTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("stop", "stop_training", "halt", "abort", "terminate", "early_stop"), "should_training_stop"),
    **dict.fromkeys(("stop_epoch", "end_epoch"), "should_epoch_stop"),
    **dict.fromkeys(("checkpoint", "save_checkpoint", "save_model"), "should_save"),
    **dict.fromkeys(("eval", "validate"), "should_evaluate"),
    **dict.fromkeys(("print", "warn"), "should_log"),
    **dict.fromkeys(("alert", "page", "tell"), "should_notify"),
}

#: Actions of a rule that is a sentence.
SENTENCE_ACTIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("halt", "abort", "terminate", "end", "quit", "exit", "kill", "stop training", "stop run"), "stop"),
    **dict.fromkeys(("early stop", "stop the training", "stop the run", "stop early"), "stop"),
    **dict.fromkeys(("end epoch", "stop the epoch"), "stop epoch"),
    **dict.fromkeys(("checkpoint", "save checkpoint", "save a checkpoint", "save model", "keep"), "save"),
    **dict.fromkeys(("eval", "validate", "run evaluation"), "evaluate"),
    **dict.fromkeys(("skip batch", "skip update", "skip step", "skip the batch"), "skip"),
    **dict.fromkeys(("warn", "message", "error", "say"), 'Write warn "text".'),
    **dict.fromkeys(("alert", "page", "mail", "email", "slack", "tell"), 'Write notify "text".'),
    **dict.fromkeys(("lr", "reduce lr", "lower lr", "decay lr", "halve lr", "reduce learning rate"), "Write lr x 0.5."),
    **dict.fromkeys(("rollback", "roll back"), "Write rollback.to(last)."),
}

_IN_A_CONTROLLER: Final = "It belongs to a controller, in the list 'controllers'."
_AT_THE_TOP: Final = "It belongs to the top of the file, next to 'controllers'."

#: Keys of a policy.
ROOT_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("rules", "alerts", "policies", "triggers"), "controllers"),
    **dict.fromkeys(("metrics", "controller-metrics"), "controller_metrics"),
    **dict.fromkeys(("parameters", "variables", "vars", "constants"), "params"),
    "actions": "operations",
    **dict.fromkeys(("definitions", "defs", "let", "aliases", "expressions", "macros", "recording_rules"), "define"),
    "groups": "controllers",
    **dict.fromkeys(("state_machine", "phases", "classes"), "states"),
    "series": "Leave it out: 'steptape check --against RUNS' finds a name that no run has.",
    **dict.fromkeys(("rule", "message", "cooldown", "every", "requires", "severity", "patience"), _IN_A_CONTROLLER),
}

#: Keys of a controller.
CONTROLLER_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("on", "event", "events", "trigger"), "triggers"),
    **dict.fromkeys(("when", "if", "expr", "expression", "condition"), "rule"),
    **dict.fromkeys(("do", "then", "action", "actions", "operation"), "operations"),
    **dict.fromkeys(("hold", "duration", "pending_for"), "for"),
    **dict.fromkeys(("escalation", "stages", "ladder", "steps"), "escalate"),
    **dict.fromkeys(("clears", "clear_when", "recover", "recovery", "resolve", "until"), "clear"),
    **dict.fromkeys(("level", "priority"), "severity"),
    **dict.fromkeys(("msg", "summary", "description", "annotations"), "message"),
    **dict.fromkeys(("alert", "id"), "name"),
    **dict.fromkeys(("define", "states", "params", "cooldowns", "controller_metrics"), _AT_THE_TOP),
    **dict.fromkeys(("each", "fresh", "on_change"), "Write every: value to ask the rule at new values alone."),
    **dict.fromkeys(("foreach", "group_by", "by", "per"), "for_each"),
    "keep_firing_for": "Write 'clear' and a condition, or 'cooldown' and a number of steps.",
    "admit": "It belongs to a name under 'define'.",
    "labels": "Write 'severity', and values of the run in 'message'.",
    **dict.fromkeys(("throttle", "rate_limit", "debounce", "repeat_interval", "group_interval"), "cooldown"),
}

#: Keys of a definition that takes only some values.
ADMISSION_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("when", "if", "where", "unless", "filter"), "admit"),
    **dict.fromkeys(("expr", "expression", "rule", "series"), "value"),
}

#: Keys of a controller's patience.
PATIENCE_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("threshold", "count", "patience", "times"), "patience_threshold"),
    "steps": "Patience counts true answers. Write 'for: 3' for three in a row.",
}

#: Keys of an escalation.
ESCALATION_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("max", "limit", "most", "max_times"), "cap"),
    **dict.fromkeys(("repeat", "loop", "restart"), "cycle"),
    **dict.fromkeys(("reset_after", "forget", "expire_after", "reset"), "forget_after"),
    **dict.fromkeys(("steps", "levels", "ladder", "operations"), "stages"),
}

#: Units of a span.
UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("minutes", "minute", "hours", "hour", "min", "h", "time"), "Write seconds, as in {seconds: 300} for 5 minutes."
    ),
    **dict.fromkeys(("epochs", "epoch"), "Write steps, or evaluations where one epoch has one."),
    **dict.fromkeys(("evals", "eval"), "evaluations"),
}
#: A span as a text with its unit.
SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
#: Seconds of each unit of time that a span may be written in.
SECONDS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}

#: Severities and modes of a controller.
SEVERITIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("error", "fatal", "high", "page"), "critical"),
    **dict.fromkeys(("warn", "medium"), "warning"),
    **dict.fromkeys(("debug", "low", "notice"), "info"),
}
CONTROLLER_MODES: Final[Mapping[str, str]] = dict.fromkeys(("dry_run", "dry-run", "dryrun", "test", "off"), "shadow")

_ALIKE: Final = "Indent the keys of one mapping alike."
#: Words of PyYAML about text that is not YAML, each with what mends it.
YAML_ERRORS: Final[Mapping[str, str]] = {
    "mapping values are not allowed here": f"Put a text that holds ': ' in quotes. {_ALIKE}",
    r"found character '\t'": "Indent with blanks, not with tabs.",
    "that cannot start any token": "Put the text in quotes.",
    "expected <block end>, but found '?'": f"A key stands left of the other keys of its mapping. {_ALIKE}",
    "expected <block end>, but found '<block mapping start>'": f"A key stands right of the others. {_ALIKE}",
    "expected <block end>": f"Put the whole text in quotes. {_ALIKE}",
    "expected a comment or a line break": "Put the whole text in quotes.",
    "undefined alias": "Put a text that begins with '*' in quotes.",
}

#: Words before the slash in names of metrics, as many loggers write them.
SECTIONS: Final = frozenset(
    {
        *("dev", "eval", "evaluation", "gpu", "grad", "gradient", "gradients", "grads", "learning", "optim"),
        *("optimizer", "perf", "system", "test", "train", "training", "val", "valid", "validation", "weight"),
    }
)

#: Metrics that most loops record, so that a name that is one slip away means one of them.
COMMON_METRICS: Final = frozenset(
    {
        *("accuracy", "batch_size", "eval_accuracy", "eval_loss", "grad_norm", "learning_rate", "loss"),
        *("perplexity", "step_loss", "test_loss", "tokens_per_s", "train_loss", "training_loss", "val_loss"),
    }
)

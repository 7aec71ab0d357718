"""Redacts secrets in what a run records about itself: configurations, command lines, messages and tracebacks.

A value or text comes in, and goes out with ``[redacted]`` in place of each secret. Numbers stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

REDACTED: Final = "[redacted]"

_SECRET: Final = re.compile(
    r"(^|[_\-./ ])(token|secret|password|passwd|passphrase|pwd|credentials?|auth|authorization|bearer|cookies?|dsn"
    r"|notify|(api|access|secret|private|wandb|openai|anthropic|hf|huggingface|comet|neptune|aws|azure)[_-]?key)$|^pass$",
    re.IGNORECASE,
)

#: Vocabulary tokens, which configurations of language models are full of.
_VOCABULARY: Final = re.compile(
    r"(^|_)(pad|bos|eos|unk|sep|cls|mask|image|stop|begin|end|special)[_-]?token$", re.IGNORECASE
)

#: Secrets that are known by their own form, whatever name they have: keys of services, webhooks, JSON web tokens, and
#: what follows ``Bearer``. The last form is the password in an address.
_KNOWN_FORMS: Final = re.compile(
    r"\b(?:"
    r"sk-(?:ant|proj|svcacct|admin|or)-[\w-]{16,}|[sr]k_(?:live|test)_\w{16,}|sk-[A-Za-z0-9]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"
    r")|(?<=\bbearer )[^\s\"',;)\]}]{6,}"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]+|(?<=discord\.com/api/webhooks/)[\w/-]+"
    r"|(?<=\bslack://)[^\s\"']+|(?<=\bdiscord://)[^\s\"']+|(?<=\btgram://)[^\s\"']+"
    r"|(?<=://)(?:(?P<user>[^\s/:@]*:)[^\s/@]+(?=@))",
    re.IGNORECASE,
)

#: A name and a value: a name or quoted key before a quoted text, which may be cut off; ``NAME=VALUE``; or
#: ``--name VALUE``. A quoted text of one or two characters is no secret, as in the messages of parsers about tokens.
_ASSIGNMENT: Final = re.compile(
    r"""(?P<before>(?<![\w\-])(?P<key>[\w\-.]+)["']?\]?\s*[:=]\s*[rbfuRBFU]{0,2}(?P<quote>["']))"""
    r"""(?:\\.|(?!(?P=quote)).){3,}(?:(?P=quote)|$)"""
    r"""|(?P<set>(?<![\w\-])(?P<name>[\w\-.]+)=)(?P<value>[^\s"',;&)\]}]+)"""
    r"""|(?P<given>(?<!\S)--?(?P<option>[\w\-]+)\s+)(?!-)[^\s"',;)\]}]+"""
)

#: What follows the name of a secret and is none: numbers, the constants of Python, YAML and JSON, and calls.
_PLAIN: Final = re.compile(r"[-+.\d]+(e[-+]?\d+)?|none|null|true|false|[\w.]+\(.*", re.IGNORECASE)


def redacted(value: Any, key: str = "") -> Any:
    """Return the JSON value with secrets replaced.

    Secrets are the text under every key that names one, the text in a list after an option that names one, and what
    ``redacted_text`` finds.

    >>> redacted({"lr": 0.1, "hf_token": "abc", "args": ["--api-key", "abc", "WANDB_API_KEY=abc"]})
    {'lr': 0.1, 'hf_token': '[redacted]', 'args': ['--api-key', '[redacted]', 'WANDB_API_KEY=[redacted]']}
    """
    if isinstance(value, dict):
        return {name: redacted(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [redacted(entry, _option(before, entry) or key) for before, entry in pairwise(["", *value])]
    if not isinstance(value, str) or not value:
        return value
    return REDACTED if names_secret(key) else redacted_text(value)


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line with secrets replaced."""
    result: list[str] = redacted(list(arguments))
    return result


def redacted_text(text: str) -> str:
    """Return a text, such as a message or a line of code, with secrets replaced.

    Secrets are values assigned to a name that names one, options of a command line, passwords in addresses, and keys
    of services by their known prefixes.

    >>> redacted_text('login(user="me", api_key="sk-1")')
    'login(user="me", api_key="[redacted]")'
    >>> redacted_text("cannot reach https://me:pw@host with DB_PASSWORD=x")
    'cannot reach https://me:[redacted]@host with DB_PASSWORD=[redacted]'
    """
    return _ASSIGNMENT.sub(_assigned, _KNOWN_FORMS.sub(lambda match: f"{match['user'] or ''}{REDACTED}", text))


def names_secret(key: str) -> bool:
    """Whether a key looks like the name of a token or password."""
    return _SECRET.search(key) is not None and _VOCABULARY.search(key) is None


def _assigned(match: re.Match[str]) -> str:
    if match["key"]:
        return f"{match['before']}{REDACTED}{match['quote']}" if names_secret(match["key"]) else match[0]
    if match["name"]:
        is_secret = names_secret(match["name"].lstrip("-")) and not _PLAIN.fullmatch(match["value"])
        return f"{match['set']}{REDACTED}" if is_secret else match[0]
    return f"{match['given']}{REDACTED}" if names_secret(match["option"]) else match[0]


def _option(argument: Any, following: Any) -> str:
    """Return the name of an option that takes the argument after it; empty for anything else."""
    is_option = isinstance(argument, str) and argument.startswith("-") and "=" not in argument
    return argument.lstrip("-") if is_option and not str(following).startswith("--") else ""

"""Redacts secrets from the configuration and command line that are recorded about a run."""

from __future__ import annotations

import re
from typing import Any, Final

REDACTED: Final = "[redacted]"

_SECRET: Final = re.compile(
    r"(^|[_\-./ ])(token|secret|password|passwd|passphrase|pwd|credentials?|auth|authorization|bearer|cookies?|dsn"
    r"|(api|access|secret|private|wandb|openai|anthropic|hf|huggingface|comet|neptune|aws|azure)[_-]?key)$|^pass$",
    re.IGNORECASE,
)

#: Vocabulary tokens, which configurations of language models are full of.
_VOCABULARY: Final = re.compile(
    r"(^|_)(pad|bos|eos|unk|sep|cls|mask|image|stop|begin|end|special)[_-]?token$", re.IGNORECASE
)

#: A name or quoted key, ``=`` or ``:``, and a quoted text, which may be cut off.
_ASSIGNED_TEXT: Final = re.compile(
    r"""((?<![\w\-])([\w\-]+)["']?\]?\s*[:=]\s*[rbfuRBFU]{0,2})(["'])(?:\\.|(?!\3).)*(?:\3|$)"""
)


#: The password in an address, ``https://user:password@host``.
_PASSWORD: Final = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(?=@)")


def redacted(value: Any, key: str = "") -> Any:
    """Return the JSON value with secrets replaced; numbers stay.

    Secrets are the text under every key that names one, and passwords in addresses.
    """
    if isinstance(value, dict):
        return {name: redacted(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [redacted(entry, key) for entry in value]
    if not isinstance(value, str) or not value:
        return value
    return REDACTED if names_secret(key) else _PASSWORD.sub(rf"\1{REDACTED}", value)


def redacted_arguments(arguments: list[str]) -> list[str]:
    """Return a command line with secret option values replaced, written as ``--api-key=X`` or ``--api-key X``."""
    result: list[str] = []
    hide_next = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        is_secret = option.startswith("-") and names_secret(option.lstrip("-"))
        hidden = f"{option}={REDACTED}" if is_secret and equals else REDACTED if hide_next else argument
        result.append(_PASSWORD.sub(rf"\1{REDACTED}", hidden))
        hide_next = is_secret and not equals
    return result


def redacted_code(line: str) -> str:
    """Return a line of source code with the text assigned to a name or key of a secret replaced.

    >>> redacted_code('login(user="me", api_key="sk-1")')
    'login(user="me", api_key="[redacted]")'
    """
    return _ASSIGNED_TEXT.sub(
        lambda match: f"{match[1]}{match[3]}{REDACTED}{match[3]}" if names_secret(match[2]) else match[0], line
    )


def names_secret(key: str) -> bool:
    """Whether a key looks like the name of a token or password."""
    return _SECRET.search(key) is not None and _VOCABULARY.search(key) is None

"""Proof that this user wrote something: a keyed hash whose key lies in the user's state directory.

    save --prove(body)--> proof, beside what it proves     load --doubt_about(body, proof)--> "" or why it is none

The key is 32 random bytes in a file of mode 0600, outside any run directory: $HEADRACE_KEY_FILE, or headrace/key below
$XDG_STATE_HOME or ~/.local/state. Who owns a directory proves nothing: an unpacked archive belongs to who unpacked it.
A key that others can read, or that is a link, is not used. Without a key, work goes on and proves nothing.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.files import kind_of

logger = logging.getLogger(__name__)

KEY_VARIABLE = "HEADRACE_KEY_FILE"
CHECKPOINT, CONFIGURATION = "headrace checkpoint 1", "headrace configuration 1"  # a proof of one is none of the other
_KEY_BYTES = 32
_warned: set[str] = set()


class KeyUnusableError(Exception):
    """There is no key that can be trusted, and why."""


def key_path() -> Path:
    """Where this user's key lies."""
    if os.environ.get(KEY_VARIABLE):
        return _absolute(os.environ[KEY_VARIABLE])
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        home = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    except RuntimeError:  # no HOME, and nobody of that number in /etc/passwd, as in many containers
        raise KeyUnusableError(f"there is no home directory for a key; set {KEY_VARIABLE} to a file of yours") from None
    return home / "headrace" / "key"


def settle_key_path() -> None:
    """From now on a relative path in the variable is an absolute one."""
    if os.environ.get(KEY_VARIABLE):
        key_path()


@functools.cache
def _absolute(path: str) -> Path:
    """As it was when it was first asked for: an environment may change the working directory later."""
    return Path(path).absolute()


def prove(purpose: str, data: Mapping[str, Any]) -> str | None:
    """The proof that this user wrote the data; None, and one warning a process, if there is no usable key."""
    try:
        return _mac(_own_key(), purpose, data)
    except KeyUnusableError as error:
        if purpose == CHECKPOINT and str(error) not in _warned:
            _warned.add(str(error))
            logger.warning(
                "checkpoints carry no proof that you made them: %s; loading one that names code of your own will ask "
                "for consent",
                error,
            )
        return None


def doubt_about(purpose: str, data: Mapping[str, Any], proof: object) -> str:
    """Why it is not proved that this user wrote the data; empty if it is."""
    if not isinstance(proof, str):
        return "it carries no proof that you made it"
    try:
        key = _read_key(key_path())
    except FileNotFoundError:
        return f"there is no key at {key_path()} to check its proof with"
    except KeyUnusableError as error:
        return str(error)
    matches = hmac.compare_digest(_mac(key, purpose, data).encode(), proof.encode(errors="replace"))
    return "" if matches else "its proof was not made with your key, or it was changed since"


def _mac(key: bytes, purpose: str, data: Mapping[str, Any]) -> str:
    body = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
    return hmac.new(key, purpose.encode() + b"\0" + body, hashlib.sha256).hexdigest()


def _own_key() -> bytes:
    path = key_path()
    try:
        return _read_key(path)
    except FileNotFoundError:
        pass
    try:
        _create_key(path)
        return _read_key(path)
    except OSError as error:
        raise KeyUnusableError(f"the key {path} can't be made: {error.strerror}") from error


def _create_key(path: Path) -> None:
    """Written whole under a name of its own, then linked to its place: nobody reads half a key, nobody replaces one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # whatever the umask added or took
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # another process was first: its key is the key
            os.link(fresh, path, follow_symlinks=False)
    finally:
        fresh.unlink()


def _read_key(path: Path) -> bytes:
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            raise KeyUnusableError(f"the key {path} is {kind_of(mode)}, expected a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KeyUnusableError(f"the key {path} can't be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise KeyUnusableError(f"the key {path} is {kind_of(found.st_mode)}, expected a regular file")
        if found.st_uid != os.geteuid():
            raise KeyUnusableError(f"the key {path} belongs to user {found.st_uid}, expected you ({os.geteuid()})")
        if found.st_mode & 0o077:
            raise KeyUnusableError(
                f"the key {path} has mode {stat.S_IMODE(found.st_mode):04o}, so others may know it; remove it, and a "
                f"new one is made"
            )
        key = file.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        raise KeyUnusableError(f"the key {path} is damaged: expected {_KEY_BYTES} bytes; remove it")
    return key

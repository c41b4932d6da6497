"""Kernels of strings that Arrow lacks. Spark counts code points, as Arrow does, and compares strings by bytes."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql.program import RowFailure, Value
from tidegate.pipelines.sources.sql.reading import Unproven


def concat(*values: Value) -> Value:
    """Concatenate strings. The result is null if one of them is null."""
    return pc.binary_join_element_wise(*values, pa.scalar(""), null_handling="emit_null")


def substring(value: Value, position: int, size: int | None) -> Value:
    """Return `substring(value, position, size)`: positions from 1, or from -1 backwards; 0 means 1.

    A position before the string shortens the result.
    """
    if size is not None and size <= 0:
        return pc.utf8_slice_codeunits(value, 0, 0)
    if position >= 0:
        start = max(position - 1, 0)
        return pc.utf8_slice_codeunits(value, start, None if size is None else start + size)
    stop = None if size is None or position + size >= 0 else position + size
    return pc.utf8_slice_codeunits(value, position, stop)


def lower(value: Value) -> Value:
    """Return a string in lower case."""
    return _mapped(value, pc.ascii_lower, str.lower)


def upper(value: Value) -> Value:
    """Return a string in upper case."""
    return _mapped(value, pc.ascii_upper, str.upper)


def _mapped(value: Value, of_ascii: Any, of_text: Any) -> Value:
    """Map ASCII with Arrow, and other values with Python, whose full Unicode mapping equals Java's."""
    values = value if isinstance(value, pa.Array) else pa.array([value.as_py()], pa.string())
    mapped = of_ascii(values)
    wide = pc.invert(pc.fill_null(pc.string_is_ascii(values), True))
    if not wide.true_count:
        return mapped
    texts = values.filter(wide).dictionary_encode()
    changed = [_changed(text, of_text) for text in texts.dictionary.to_pylist()]
    return pc.replace_with_mask(mapped, wide, pa.array(changed, pa.string()).take(texts.indices))


_LATER_PAIRS = frozenset("\u019b\u0264\ua7d3\ua7d5")
"""Letters that got an upper-case form in Unicode 16 or 17. Libraries for other versions map them differently."""


_CASELESS = ((0x20A0, 0x20CF), (0x1F000, 0xDFFFF))
"""Currency signs, pictures such as emoji, and ideographs. No later version of Unicode adds letters with case here."""


def _has_unknown_case(sign: str) -> bool:
    """Return True for a character that another version of Unicode may map to a different case than Python's."""
    if sign in _LATER_PAIRS:
        return True
    return unicodedata.category(sign) == "Cn" and not any(low <= ord(sign) <= high for low, high in _CASELESS)


def _changed(text: str, of_text: Any) -> str:
    strange = next(filter(_has_unknown_case, text), None)
    if strange is not None:
        raise RowFailure(f"the value {text!r} has the character {strange!r}, whose case depends on the Unicode version")
    return str(of_text(text))


def replace(value: Value, search: str, replacement: str) -> Value:
    """Return `replace(value, search, replacement)`, from left to right; an empty search changes nothing."""
    return pc.replace_substring(value, pattern=search, replacement=replacement) if search else value


def like_pattern(pattern: str, escape: str) -> str:
    """Return the RE2 pattern for a LIKE pattern. Raise Unproven if Spark refuses the pattern."""
    parts, signs = [], iter(pattern)
    for sign in signs:
        if sign == escape:
            quoted = next(signs, None)
            if quoted is None or quoted not in ("_", "%", escape):
                raise Unproven(f"the pattern {pattern!r} does not escape _, % or {escape}")
            parts.append(_literal(quoted))
        else:
            parts.append({"_": ".", "%": ".*"}.get(sign) or _literal(sign))
    return rf"(?s)\A{''.join(parts)}\z"


def _literal(sign: str) -> str:
    return sign if sign.isalnum() or sign == "_" else rf"\x{{{ord(sign):x}}}"


_ORDINARY = frozenset(" -_@:/,;#%&=!~\"'<>")
"""Characters, in addition to ASCII letters and digits, that stand for themselves in the patterns of Java and RE2."""


_CLASS = re.compile(r"\[(?:[A-Za-z0-9](?:-[A-Za-z0-9])?)+\]")
"""A class such as [a-z0-9], in which a `-` always stands between the bounds of a range."""
_RANGE = re.compile(r"(.)-(.)")


def regex_pattern(pattern: str) -> str:
    """Return the RE2 pattern for an RLIKE pattern, limited to what both libraries interpret in the same way.

    Raises:
        Unproven: the pattern has a construct that Java and RE2 may read differently.
    """
    parts: list[str] = []
    previous, depth, place = "", 0, 0
    while place < len(pattern):
        sign = pattern[place]
        is_ordinary = (sign.isascii() and sign.isalnum()) or sign in _ORDINARY
        repeats = sign in "*+?" and previous and previous not in "*+?(|^"
        opens = sign == "(" and not pattern.startswith("?", place + 1)
        closes = sign == ")" and depth > 0 and previous not in "(|"
        if is_ordinary or repeats or opens or closes or (sign == "|" and previous not in ("", "(", "|")):
            parts.append(sign)
            depth += opens - closes
        elif sign == ".":
            parts.append(r"[^\n\r\x{85}\x{2028}\x{2029}]")
        elif sign == "^" and place == 0:
            parts.append(r"\A")
        elif (found := _CLASS.match(pattern, place)) and all(first <= last for first, last in _RANGE.findall(found[0])):
            parts.append(found[0])
            place = found.end() - 1
            sign = "]"
        else:
            raise Unproven(f"the pattern {pattern!r} has {sign!r}, which Java and RE2 may read differently")
        previous, place = sign, place + 1
    if depth or previous in ("(", "|", "") or (pattern.startswith("^") and "|" in pattern):
        raise Unproven(f"the pattern {pattern!r} may be read differently by Java and RE2")
    return "".join(parts)

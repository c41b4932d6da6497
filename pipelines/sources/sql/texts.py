"""Kernels of strings that Arrow lacks. Spark counts code points, as Arrow does, and compares strings by bytes."""

from __future__ import annotations

import math
import re
import unicodedata
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql.program import OnlyBySpark, Value
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
    number = ord(sign)
    # Unicode never gives a meaning to U+FDD0 to U+FDEF, nor to the last two code points of a plane.
    is_noncharacter = 0xFDD0 <= number <= 0xFDEF or number & 0xFFFE == 0xFFFE
    if is_noncharacter or any(low <= number <= high for low, high in _CASELESS):
        return False
    return unicodedata.category(sign) == "Cn"


def _changed(text: str, of_text: Any) -> str:
    strange = next(filter(_has_unknown_case, text), None)
    if strange is not None:
        raise OnlyBySpark(
            f"the value {text!r} has the character {strange!r}, whose case depends on the Unicode version"
        )
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


_CLASS = re.compile(r"\[\^?-?(?:[A-Za-z0-9](?:-[A-Za-z0-9])?|[ _@:/,;%=!~\"'<>.*+?()|$])+-?\]")
"""A class such as [a-z0-9_] or [^a-z], in which a `-` comes first, last, or between the bounds of a range."""
_RANGE = re.compile(r"([A-Za-z0-9])-([A-Za-z0-9])")


def regex_replacing(pattern: str, replacement: str) -> tuple[str, str]:
    """Return the RE2 pattern and the replacement for `regexp_replace`.

    Raises:
        Unproven: Java and RE2 may read the pattern differently, find other matches, or replace them with other text.
    """
    found = regex_pattern(pattern)
    loops = [body for body, sign in _groups_of(pattern) if sign in ("*", "+", "?")]
    if any(map(_may_be_empty, loops)) or _may_be_empty(pattern.removeprefix("^")):
        raise Unproven(f"the pattern {pattern!r}, or a group in it that is repeated, matches empty text")
    text, groups = "", pattern.count("(") - sum(part.count("(") for part in _CLASS.findall(pattern))
    for piece in re.findall(r"\$.?|[^$]+", replacement, re.S):
        if piece.startswith("$"):
            if loops or not piece[1:].isdigit() or not piece.isascii() or int(piece[1:]) > groups:
                raise Unproven(f"the replacement {replacement!r} is not proven for the pattern {pattern!r}")
            piece = f"\\{piece[1:]}"
        text += piece
    if re.search(r"\$\d\d", replacement):
        raise Unproven(f"the replacement {replacement!r} is not proven: a digit follows the number of a group")
    return found, text


def _may_be_empty(pattern: str) -> bool:
    found: bool = pc.match_substring_regex(pa.scalar(""), pattern=rf"\A(?:{regex_pattern(pattern)})\z").as_py()
    return found


def _groups_of(pattern: str) -> list[tuple[str, str]]:
    """Return the text of each group of a pattern, and the character that follows it."""
    groups, begins = [], []
    # Parentheses in a class are characters.
    plain = _CLASS.sub(lambda found: "x" * len(found[0]), pattern)
    for place, sign in enumerate(plain):
        if sign == "(":
            begins.append(place + 1)
        elif sign == ")":
            groups.append((pattern[begins.pop() : place], pattern[place + 1 : place + 2]))
    return groups


def regex_replace(value: Value, pattern: str, replacement: str) -> Value:
    """Return `regexp_replace(value, pattern, replacement)`, for a pattern and a replacement of `regex_replacing`."""
    return pc.replace_substring_regex(value, pattern=pattern, replacement=replacement)


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


_LEAST_SURE, _MOST_SURE = 1e-6, {pa.float64(): 2.0**53, pa.float32(): 2.0**24}
"""Bounds of the magnitudes for which all versions of Java write the shortest text that is read as the same number.
Before version 19, Java wrote a digit too many for some numbers outside these bounds.
"""


def floating_text(value: Value) -> Value:
    """Return floats or doubles as text, as `Double.toString` writes them."""
    values = value if isinstance(value, pa.Array) else pa.array([value.as_py()], value.type)
    is_double = pa.types.is_float64(values.type)
    # By their bits, because 0.0 = -0.0.
    encoded = values.view(pa.int64() if is_double else pa.int32()).dictionary_encode()
    numbers = encoded.dictionary.view(values.type).to_numpy(zero_copy_only=False)
    written = [_floating_text(number, _MOST_SURE[values.type]) for number in numbers]
    return pa.array(written, pa.string()).take(encoded.indices)


def _floating_text(number: Any, most: float) -> str:
    if number != number:
        return "NaN"
    size = abs(float(number))
    sign = "-" if math.copysign(1, number) < 0 else ""
    if size == 0 or math.isinf(size):
        return f"{sign}Infinity" if size else f"{sign}0.0"
    if not _LEAST_SURE <= size < most:
        raise OnlyBySpark(f"the text of {number!s} depends on the version of Java")
    _, digits, exponent = Decimal(str(abs(number))).normalize().as_tuple()
    text, power = "".join(map(str, digits)), len(digits) + int(exponent) - 1
    if not 1e-3 <= size < 1e7:
        return f"{sign}{text[0]}.{text[1:] or 0}E{power}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{text}"
    return f"{sign}{text[: power + 1].ljust(power + 1, '0')}.{text[power + 1 :] or 0}"

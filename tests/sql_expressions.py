"""Expressions in Spark SQL over the columns of `tests/spark/test_sql.py`, hand-written and random."""

from __future__ import annotations

from hypothesis import strategies as st

from tidegate.pipelines.sources.sql.functions import lacks_function


def _lines(text: str) -> list[str]:
    """Return the expressions of a text, which are separated by semicolons and new lines."""
    return [part.strip() for line in text.splitlines() for part in line.split(" ; ") if part.strip()]


_PAIRS = [("i1", "i2"), ("l1", "i1"), ("b1", "h1"), ("d1", "d2"), ("f1", "d1"), ("f1", "i1"), ("s1", "s2")]
_PAIRS += [("day1", "day2"), ("t1", "t2"), ("t1", "day1"), ("p1", "p2"), ("p1", "i1"), ("p2", "l1"), ("ok1", "ok2")]
_NUMBERS = [
    ("i1", "i2"),
    ("l1", "l2"),
    ("l1", "i1"),
    ("b1", "b1"),
    ("h1", "b1"),
    ("d1", "d2"),
    ("f1", "f1"),
    ("f1", "i1"),
]
_NUMBERS += [("small1", "small2"), ("l1", "small1"), ("d1", "small1")]

EXPRESSIONS: list[str] = [
    *(
        f"{left} {sign} {right}"
        for left, right in _PAIRS
        for sign in ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>")
    ),
    *(f"{left} {sign} {right}" for left, right in _NUMBERS for sign in ("+", "-", "*", "/", "%")),
    *(f"{left} div {right}" for left, right in (("i1", "i2"), ("l1", "l2"), ("b1", "h1"), ("small1", "small2"))),
    *(
        f"substring(s1, {position}, {size})"
        for position in (-5, -2, -1, 0, 1, 2, 4)
        for size in (-1, 0, 1, 2, 3, 2147483647)
    ),
    *(
        f"cast({column} as {kind})"
        for column in ("i1", "l1", "b1", "h1", "small1")
        for kind in ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "timestamp")
    ),
    *(
        f"cast({column} as {kind})"
        for column in ("d1", "f1")
        for kind in ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean")
    ),
    *(f"cast(ok1 as {kind})" for kind in ("tinyint", "int", "bigint", "double", "float", "string")),
    *(f"cast(n1 as {kind})" for kind in ("tinyint", "smallint", "int", "bigint", "double", "boolean")),
    *(f"try_cast(n1 as {kind})" for kind in ("tinyint", "smallint", "int", "bigint", "double", "boolean")),
    *(f"{how}(n1 as decimal({size}))" for how in ("cast", "try_cast") for size in ("10,2", "38,0", "38,18", "3,3")),
    *(
        f"{function}(m1, '{form}')"
        for function in ("to_timestamp", "try_to_timestamp", "to_date", "try_to_date")
        if not lacks_function(function)
        for form in ("yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss", "yyyy/MM/dd", "yyyy-MM-dd HH:mm:ss.SSS")
    ),
    *(
        f"date_trunc('{unit}', t1)"
        for unit in ("year", "QUARTER", "month", "mon", "week", "day", "DD", "hour", "minute", "second", "millisecond")
    ),
    *(f"trunc(day1, '{unit}')" for unit in ("year", "yy", "quarter", "month", "MM", "week")),
    *(
        f"{part}({column})"
        for part in ("year", "month", "quarter", "day", "dayofmonth", "dayofweek", "weekday", "dayofyear")
        for column in ("t1", "day1")
    ),
    *_lines(
        """
        p1 + p2 ; p1 - p2 ; p1 * p2 ; p1 + i1 ; p1 * 2 ; p1 - 1.5 ; 2 * p2 ; p1 * -3 ; p1 + l1 ; p2 + b1 ; d1 * 1.5
        1 + d1 ; i1 + 1 ; l1 + 1 ; i1 * 2L ; b1 + 1 ; b1 + 1Y ; h1 * 2S ; f1 * 2 ; f1 + 1.5D ; 1.5F + f1 ; i1 + 1e3
        d1 / 3 ; i1 / 2 ; -i1 ; -l1 ; -d1 ; -b1 ; - small1 + 3 ; +i1 ; p1 / d1 ; -p1 ; i1 - -1
        -2147483648 + small1 ; -9223372036854775807 + small1 ; 2147483648 + small1 ; i1 * -5 ; p2 < 0.05 ; p1 > 1
        p1 >= 1.50 ; p1 = 3 ; p2 = 1.5 ; i1 > 1.5 ; l1 > 2.5D ; d1 > 1 ; d1 = 0 ; f1 = 1.5F ; f1 = 0.1D
        ok1 and ok2 ; ok1 or ok2 ; not ok1 ; !ok1 ; not ok1 and ok2 or ok1 ; ok1 and not (ok2 or ok1) ; ok1 is true
        ok1 is false ; ok1 is not true ; i1 is null ; i1 is not null ; st is null ; st.X is not null ; isnull(s1)
        isnotnull(s1) ; isnan(d1) ; isnan(f1) ; i1 is distinct from i2 ; d1 is distinct from d2 ; coalesce(i1, i2)
        coalesce(i1, l1, 0) ; coalesce(null, i1) ; nvl(s1, 'none') ; ifnull(d1, 0) ; coalesce(p1, 0)
        coalesce(p1, p2) ; coalesce(i1, p2) ; coalesce(f1, i1) ; coalesce(day1, t1) ; nullif(i1, i2)
        nullif(d1, d2) ; nvl2(i1, s1, s2) ; nullif(s1, '') ; coalesce(small1 / small2, 1.0D) ; coalesce(b1, h1)
        coalesce(f1, d1) ; case when ok1 then i1 else l1 end ; case when ok1 then i1 end
        case when ok1 then 1 when ok2 then 2.5 end ; case i1 when 1 then 'a' when 2 then 'b' else s1 end
        case when i2 <> 0 then i1 % i2 end ; if(ok1, i1, i2) ; case when i2 = 0 then 0D else i1 / i2 end
        if(i2 = 0, null, i1 / i2) ; i2 <> 0 and i1 / i2 > 1 ; i2 = 0 or i1 / i2 > 1 ; case s1 when 'a' then t1 end
        if(isnull(i1), 0, i1) ; case d1 when 0 then 1 else 2 end ; i1 in (1, 2, 3) ; i1 in (1, null)
        i1 not in (1, 2) ; i1 not in (1, null) ; s1 in ('a', '', 'é') ; l1 in (1, 3) ; d1 in (0D, 1.5D)
        day1 in (date '1970-01-01', date '2024-02-29') ; d1 not in (0D) ; l1 in (1L, 3000000000)
        t1 in (timestamp '1970-01-01') ; i1 in (1) ; b1 in (1Y, 2Y) ; ok1 in (true) ; s1 not in ('a')
        i1 between 0 and 7 ; i1 not between 0 and 7 ; d1 between -1 and 1.5 ; s1 between 'a' and 'b'
        t1 between t2 and t1 ; p1 between 0 and 3 ; day1 between date '1970-01-01' and date '2024-12-31'
        d1 between d2 and d1 ; s1 like 'a%' ; s1 like '%b' ; s1 like '_' ; s1 like '%' ; s1 like ''
        s1 like '!%!_' escape '!' ; s1 like 'a_b' ; s1 not like 'a%' ; s1 like '%a%' ; s1 like '🎈_🎈' ; s1 like '%.%'
        s1 like '日_' ; s1 like 'a%%b' ; s1 like '(a' ; s1 rlike '^a' ; s1 rlike 'b+' ; s1 rlike '[a-c]+ ?b'
        s1 rlike 'a.b' ; s1 rlike 'a.' ; s1 rlike '(a|b)c' ; s1 rlike 'x|b' ; n1 rlike '^[0-9]+' ; s1 not rlike 'a'
        s1 rlike '.' ; s1 rlike '^a.*b' ; substring(s1, 2) ; substr(s1, -2L) ; substring(s1, 0) ; substr(s1, 1, 1)
        left(s1, 2) ; left(s1, 0) ; left(s1, -1) ; right(s1, 2) ; right(s1, 0) ; right(s1, -1) ; right(s1, 100)
        lower(s1) ; upper(s1) ; lcase(s1) ; ucase(s1) ; trim(s1) ; ltrim(s1) ; rtrim(s1) ; btrim(s1) ; length(s1)
        char_length(s1) ; len(s1) ; character_length(s1) ; concat(s1, s2) ; s1 || s2 ; s1 || '-' || s2 ; concat(s1)
        concat(i1, '-', l1) ; i1 || s1 ; concat(ok1, day1) ; concat('a', s1, 'b') ; startswith(s1, 'a')
        endswith(s1, 'b') ; contains(s1, 'b') ; replace(s1, 'a', 'xy') ; replace(s1, '', 'x')
        replace(s1, 'aa', 'a') ; startswith(s1, '') ; contains(s1, '🎈') ; upper(trim(s1)) || '!' ; abs(i1) ; abs(l1)
        abs(d1) ; abs(b1) ; abs(f1) ; abs(small1) ; floor(d1) ; ceil(d1) ; ceiling(d1) ; greatest(i1, i2)
        greatest(i1, l1, 3) ; least(d1, d2) ; greatest(d1, d2, 0D) ; least(s1, s2, 'b') ; least(day1, day2)
        greatest(t1, t2) ; least(p1, p2) ; greatest(f1, d1) ; greatest(ok1, ok2) ; least(i1, null, i2)
        cast(i1 as decimal(10,0)) ; cast(l1 as decimal(22,2)) ; cast(p1 as decimal(20,4)) ; cast(p1 as double)
        cast(p1 as bigint) ; cast(p2 as int) ; cast(p2 as tinyint) ; cast(p2 as double) ; cast(p1 as int)
        try_cast(l1 as int) ; try_cast(i1 as smallint) ; try_cast(h1 as tinyint) ; try_cast(small1 as bigint)
        cast(p1 as decimal(5,1)) ; try_cast(p1 as decimal(5,1)) ; try_cast(p1 as decimal(10,2))
        cast(p2 as decimal(4,2)) ; try_cast(p2 as decimal(6,1)) ; try_cast(p2 as decimal(3,2))
        try_cast(p1 as decimal(12,4)) ; cast(p2 as decimal(2,0))
        cast(b1 as decimal(3)) ; cast(m1 as date) ; cast(m1 as timestamp) ; try_cast(m1 as date)
        try_cast(m1 as timestamp) ; cast(day1 as string) ; cast(t1 as string) ; cast(t1 as date)
        cast(day1 as timestamp) ; cast(t1 as bigint) ; cast(s1 as string) ; to_date(m1) ; to_timestamp(m1)
        try_to_timestamp(m1) ; to_date(t1) ; to_timestamp(day1) ; to_date(day1)
        try_to_timestamp(m1, 'yyyy-MM-dd HH:mm:ss.SSSSSS') ; try_to_timestamp(m1, 'yyyy/MM/dd HH:mm:ss')
        date_trunc('microsecond', t1) ; hour(t1) ; minute(t1) ; second(t1) ; unix_timestamp(t1)
        unix_timestamp(day1) ; unix_seconds(t1) ; unix_millis(t1) ; unix_micros(t1) ; unix_date(day1)
        timestamp_seconds(i1) ; timestamp_seconds(l1) ; timestamp_millis(l1) ; timestamp_micros(l1)
        timestamp_millis(i1) ; date_from_unix_date(small1) ; date_add(day1, small1) ; date_sub(day1, 3)
        date_add(t1, 1) ; datediff(day1, day2) ; datediff(t1, day2) ; date_add(day1, b1) ; date_diff(t1, t2)
        day1 > '2024-01-01' ; t1 >= '2024-01-01 10:11:12' ; t1 < timestamp '2024-01-01 00:00:00+01:00'
        '2024-1-1' < day1 ; st.X ; ST.x + 1 ; st.name || 'x' ; st.`in`.d ; `a b` ; `A B` + i1 ; I1
        St.X between 0 and 1 ; int(d1) ; string(i1) ; double(i1) ; date(t1) ; bigint(small1) ; boolean(i1) ; i1
        'text' ; 1 ; 1.5 ; true ; date '2024-02-29' ; timestamp '2024-01-01 10:11:12.5' ; 1.5BD ; 12S ; 3Y ; 7L
        2.5D ; 1e3 ; -5 ; -1.5 ; "x" ; i1 /* a comment */ + 1L ; (i1 = i2) = ok1 ; (ok1 is null) or ok2
        s1 || (s2 || 'x') ; (i1 + 1L) * (i2 - 1L) ; s1 <> '$' ; l1 >= -9223372036854775808 ; i1 < 2147483648
        p1 < 9223372036854775808 ; d1 < 9223372036854775808 ; f1 > 3.4028234663852886e38F ; -(-5) ; s1 = 'ü'
        p1 + 5 ; p1 + (5) ; p1 - -5L ; p1 * -5 ; p1 + -(5) ; p1 + +5 ; p1 + int(5) ; p1 * cast(5 as bigint)
        bigint(5) - p1 ; cast(5 as int) + p1 ; positive(p1) ; p1 < -(5) ; +d1
        t1 + interval 1 day ; t1 - interval '1' day ; t1 + interval '2 days' ; interval 3 weeks + t1
        t1 + interval 7 hours ; t1 - interval 90 minutes ; t1 + interval '30' second ; t1 + interval -5 seconds
        t1 - interval 1 millisecond ; t1 + interval 250 microseconds ; t1 + interval 1 month ; t1 - interval 1 month
        t1 + interval 13 months ; t1 - interval 4 years ; t1 + interval 0 year ; t1 + interval 999999 days
        day1 + interval 1 day ; day1 - interval 2 days ; day1 + interval 1 week ; day1 + interval 3 hours
        day1 - interval 1 month ; day1 + interval 1 year ; interval 1 day + day1 ; day1 + interval 999999 months
        t1 >= t2 - interval 1 hour ; to_utc_timestamp(z1, 'Europe/Berlin') ; from_utc_timestamp(z1, 'Europe/Berlin')
        to_utc_timestamp(z1, 'America/New_York') ; from_utc_timestamp(z1, 'America/New_York')
        to_utc_timestamp(z1, 'Australia/Lord_Howe') ; from_utc_timestamp(z1, 'Australia/Lord_Howe')
        to_utc_timestamp(z1, 'Pacific/Apia') ; from_utc_timestamp(z1, 'Pacific/Apia') ; to_utc_timestamp(t1, '+05:30')
        from_utc_timestamp(t1, 'UTC-3') ; to_utc_timestamp(t1, 'UTC') ; from_utc_timestamp(z1, 'PST')
        to_utc_timestamp(t1, '-0800') ; from_utc_timestamp(t1, '+01:02:03')
        from_utc_timestamp(z1, 'Africa/Monrovia') ; to_utc_timestamp(date '2024-03-31', 'Asia/Beirut')
        from_utc_timestamp(z1, 'America/Sao_Paulo') ; date_trunc('day', from_utc_timestamp(z1, 'Europe/Berlin'))
        to_date(from_utc_timestamp(z1, 'Asia/Tokyo')) ; cast(z2 as timestamp) ; try_cast(z2 as timestamp)
        try_to_timestamp(z2) ; to_date(z2) ; round(d1) ; round(d1, 2) ; round(d2, 6) ; round(d1, 0) ; round(p1)
        round(p1, 1) ; round(p2, 2) ; round(p2, 5) ; round(p1, -1) ; round(p2, -1) ; round(p2, -4) ; round(i1)
        round(i1, 2) ; round(i1, -1) ; round(i2, -3) ; round(l1, -1) ; round(l1, -19) ; round(b1, -1) ; round(h1, -2)
        round(b1, -3) ; round(l2, -20) ; round(2.5) ; round(d1 * 100) / 100 ; round(p1 / p2, 2) ; round(c1, 2)
        round(c1, 4) ; round(c1) ; round(c2, 4) ; round(p1, 12) ; p1 / p2 ; p2 / p1 ; p1 / 3 ; 10 / p2 ; p1 / i1
        l1 / p1 ; p1 / p1 ; p1 / 0.7 ; c2 / p1 ; c2 / c2 ; p1 / c2 ; p2 / b1 ; p1 / 7L ; 1.0 / p2 ; l1 / c2
        if(p2 = 0, null, p1 / p2) ; (p1 + 1) / (p2 - 1) ; p1 / -3 ; cast(c1 as string) ; concat('x', c1) ; c1 || ''
        cast(c3 as string) ; cast(p1 as string) ; cast(p2 as string) ; cast(c2 as string) ; p1 || ''
        cast(p1 * p2 as string) ; string(c1) ; date_format(t1, 'yyyy-MM-dd')
        date_format(t1, 'yyyy-MM-dd HH:mm:ss.SSS') ; date_format(day1, 'E, d MMM yy')
        date_format(t1, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX") ; date_format(t1, 'EEEE dd MMMM y')
        date_format(t1, 'h:m a') ; date_format(t1, 'k K hh kk KK H m s S SS')
        date_format(t1, 'D DD DDD Q QQ QQQ QQQQ q qq qqq qqqq') ; date_format(t1, 'L LL LLL LLLL M MM')
        date_format(t1, 'X XX XXX x xx xxx Z ZZ ZZZ ZZZZ ZZZZZ VV z zzz O OOOO')
        date_format(t1, "'it''s' yyy '' SSSSSSSSS") ; date_format(t1, 'yyyyMMdd') ; date_format(t1, 'E EE EEE EEEE')
        date_format(t1, 'yyyy/MM/dd, HH:mm') ; date_format(t1, '') ; date_format(t1, 'yyyy|M;d_H=m+s*é')
        regexp_replace(s1, 'a', 'b') ; regexp_replace(s1, '[a-z]', 'x') ; regexp_replace(s1, '[^a-z]', '')
        regexp_replace(s1, '[^a-zA-Z0-9]+', '_') ; regexp_replace(s1, '(a)(b)', '$2$1')
        regexp_replace(s1, 'a|ab', '<$0>') ; regexp_replace(s1, '(b|c)+', '-') ; regexp_replace(s1, '^ +', '')
        regexp_replace(s1, '.', '$0.') ; regexp_replace(s1, 'a.?b', '*') ; regexp_replace(s1, '^.', '')
        regexp_replace(s1, '(a|b) ?', '[$1]') ; regexp_replace(n1, '[^0-9.]', '')
        regexp_replace(m1, '([0-9]+)-([0-9]+)', '$2/$1') ; regexp_replace(s1, 'b+', '')
        regexp_replace(s1, '(ab|a)b*', '<$1>') ; regexp_replace(m1, '[T ]', 'T') ; regexp_replace(m1, '[-:]', '')
        s1 rlike '[^a]' ; s1 rlike '[^a-c]b' ; s1 rlike '[a.(*]' ; i1 <=> null
        null <=> s1 ; i1 = null ; null < l1 ; t1 > null ; ok1 and null ; null or ok1 ; not null
        i1 is distinct from null ; i1 + null ; null * d1 ; l1 - null ; i1 / null ; i1 div null ; l1 % null
        (i1 + 1) = null ; if(null, 1, 2) ; i1 / i2 > null
        ok1 and (i1 / i2 > null) ; p1 = null ; day1 <> null ; null <=> (i1 / i2)
        """
    ),
]
"""Expressions that must run as Arrow compute."""

REFUSED = _lines(
    r"""
        rand() ; uuid() ; current_timestamp() ; current_date ; hash(i1) ; i1 & 1
        s1 || i1 + 1 ; i1 = i2 is null = ok1 ; s1 rlike 'a$' ; s1 rlike '(?i)a'
        s1 like concat('a', '%') ; cast(d1 as decimal(10,2)) ; s1 rlike 'a[b'
        cast(s1 as binary) ; p1 % 2 ; to_date(m1, 'dd.MM.yyyy') ; to_timestamp(m1, 'yyyyMMdd')
        i1 in (select 1) ; n1 > 1 ; i1 + s1 ; array(i1)[0] ; i1 <=> i2 < l1 ; i1 = i2 in (1)
        not (i1 = i2) <=> ok1 is null ; sum(i1) ; row_number() over (order by i1) ; nothing ; st.nothing ; i1.x
        exists(array(i1), x -> x > 1) ; date_trunc('decade', t1) ; s1 = '\n' ; s1::int ; interval 1 day
        null ; s1 ilike 'a' ; _metadata.file_path ; s1 like 'a!' escape '!' ; i1 in (i2)
        cast(s1 as varchar(2)) ; extract(year from t1) ; s1 = '${env:HOME}'
        ü ; l1 < 9223372036854775808 ; cast(cast(i1 as float) as double) ; cast(l1 as float) + 0D ; float(i1) = d1
        i1 between -9223372036854775809 and 0 ; d1 < 1e400 ; d1 < 1e400D ; f1 < 1e39F ; -(-2147483648)
        substring(s1, 3000000000) ; t1 + interval 1 quarter ; t1 + interval '1-2' year to month ; t1 - t2
        i1 + interval 1 day ; t1 + interval 1.5 seconds ; t1 + interval i1 day ; t1 * interval 1 day
        interval 1 day - t1 ; s1 + interval 1 day ; to_utc_timestamp(t1, 'Nowhere/City') ; to_utc_timestamp(t1, s1)
        from_utc_timestamp(s1, 'UTC') ; round(d1, 7) ; round(d1, -1) ; round(f1, 1) ; round(i1, i2)
        date_format(t1, 'YYYY') ; date_format(t1, 'yyyy[MM]') ; date_format(t1, 'u') ; date_format(t1, 'MMMMM')
        date_format(t1, "yyyy'") ; date_format(t1, 'B') ; date_format(t1, s1) ; regexp_replace(s1, 'a*', 'b')
        regexp_replace(s1, 'a', '$1') ; regexp_replace(s1, 'a', 'b$') ; p1 + null ; regexp_replace(s1, '(a|b)+', '$1')
        regexp_replace(s1, '(a?)+b', '') ; regexp_replace(s1, s2, '') ; null + null ; regexp_replace(s1, 'a$', 'b')
        regexp_replace(s1, '(a)', '$12') ; s1 + null ; date_format(s1, 'yyyy')
    """
)
"""Expressions that are left to Spark."""


@st.composite
def drawn(draw: st.DrawFn, depth: int = 3) -> str:
    """Draw an expression of any type."""
    return draw(st.sampled_from(sorted(_KINDS)).flatmap(lambda kind: of(kind, depth)))


_KINDS: dict[str, tuple[list[str], list[str]]] = {
    "int": (
        ["i1", "small1", "small2", "b1", "1", "-3", "st.X", "h1"],
        [
            "({int} + {int})",
            "({int} - {int})",
            "({int} * {int})",
            "length({text})",
            "year({time})",
            "month({day})",
            "if({bool}, {int}, {int})",
            "coalesce({int}, {int})",
            "case when {bool} then {int} end",
            "({int} % {int})",
            "greatest({int}, {int})",
            "nullif({int}, {int})",
            "datediff({day}, {day})",
            "abs({int})",
            "second({time})",
        ],
    ),
    "long": (
        ["l1", "5L", "l2"],
        [
            "({long} + {int})",
            "({int} div {int})",
            "unix_millis({time})",
            "cast({int} as bigint)",
            "unix_seconds({time})",
            "least({long}, {int})",
            "coalesce({long}, {int})",
            "floor({double})",
            "if({bool}, {long}, {int})",
        ],
    ),
    "double": (
        ["d1", "d2", "f1", "1.5D", "0D"],
        [
            "({double} + {double})",
            "({double} * {int})",
            "({int} / {int})",
            "({double} - {long})",
            "-({double})",
            "coalesce({double}, {int})",
            "if({bool}, {double}, {double})",
            "greatest({double}, {double})",
            "abs({double})",
            "round({double}, 2)",
        ],
    ),
    "decimal": (
        ["p1", "p2", "c2", "1.5", "cast(small1 as decimal(5,2))"],
        [
            "({decimal} / {decimal})",
            "({decimal} + {decimal})",
            "({decimal} * {int})",
            "({decimal} / {int})",
            "round({decimal}, 1)",
            "round({decimal}, -1)",
            "coalesce({decimal}, {decimal})",
        ],
    ),
    "text": (
        ["s1", "s2", "n1", "'a'", "''"],
        [
            "concat({text}, {text})",
            "trim({text})",
            "substring({text}, -2, 1)",
            "left({text}, 2)",
            "({text} || {text})",
            "if({bool}, {text}, {text})",
            "coalesce({text}, {text})",
            "cast({int} as string)",
            "upper({text})",
            "regexp_replace({text}, '[^a-z]+', '-')",
            "date_format({time}, 'yyyy-MM-dd HH:mm:ss.SSS E D a')",
            "cast({decimal} as string)",
            "cast(c1 as string)",
        ],
    ),
    "bool": (
        ["ok1", "ok2", "true"],
        [
            "({int} < {int})",
            "({double} = {double})",
            "({text} <= {text})",
            "({bool} and {bool})",
            "({bool} or {bool})",
            "(not {bool})",
            "({int} is null)",
            "({text} like '%a%')",
            "({long} <=> {long})",
            "({day} > {day})",
            "isnan({double})",
            "({int} in (1, 2, null))",
            "({double} between {double} and {double})",
            "({time} < {time})",
            "({double} < {long})",
            "({decimal} < {decimal})",
            "({bool} or null)",
            "({int} <=> null)",
        ],
    ),
    "day": (
        ["day1", "day2", "date '2024-02-29'"],
        [
            "date_add({day}, 3)",
            "trunc({day}, 'month')",
            "coalesce({day}, {day})",
            "to_date({time})",
            "({day} + interval 5 weeks)",
            "({day} - interval 1 month)",
            "if({bool}, {day}, {day})",
        ],
    ),
    "time": (
        ["t1", "t2", "timestamp '2024-01-01 10:00:00'"],
        [
            "date_trunc('hour', {time})",
            "date_trunc('month', {time})",
            "if({bool}, {time}, {time})",
            "greatest({time}, {time})",
            "try_to_timestamp(m1)",
            "coalesce({time}, {time})",
            "cast({day} as timestamp)",
            "({time} + interval 90 minutes)",
            "({time} - interval 1 month)",
            "to_utc_timestamp(z1, 'Europe/Berlin')",
            "from_utc_timestamp({time}, '-03:30')",
            "try_to_timestamp(z2)",
        ],
    ),
}
"""For each type, its columns and literals, and forms with holes for other types."""


def of(kind: str, depth: int) -> st.SearchStrategy[str]:
    """Draw an expression of a type."""
    leaves, forms = _KINDS[kind]
    if depth == 0:
        return st.sampled_from(leaves)

    def filled(form: str) -> st.SearchStrategy[str]:
        pieces = form.replace("{", "}").split("}")
        return st.tuples(
            *(of(piece, depth - 1) if number % 2 else st.just(piece) for number, piece in enumerate(pieces))
        ).map("".join)

    return st.one_of(st.sampled_from(leaves), st.sampled_from(forms).flatmap(filled))

------------------------------- MODULE Source -------------------------------
(* The source: a table to which commits are appended, each with several files. Each file has one row, and each row a  *)
(* time. Times lists the times by generation: after DROP and CREATE, the table is a different one, with other rows.   *)
(*                                                                                                                    *)
(* This module is also the oracle: it defines which rows a position covers, and which of them are late, fired or      *)
(* open. It knows nothing about drivers, epochs or crashes. A row is late if its time is before the watermark with    *)
(* which its commit began; a row that is not late is open until the watermark is behind its time, and then it is a    *)
(* result.                                                                                                            *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANT Times

(* Two commits, and two of a second generation. The row with time 2 is late, because 3 was read in an earlier commit. *)
(* If the commit <<3, 1>> is read in two halves, its watermark comes from the half that was read first.               *)
SmallTimes == << << <<3, 1>>, <<2, 4>> >>, << <<5>>, <<2>> >> >>
TinyTimes == << << <<1>>, <<4>> >> >>
OneTime == << << <<3>> >> >>
ThreeTimes == << << <<1>>, <<2>>, <<4>> >> >>
LateTimes == << << <<3>>, <<2>> >> >>
ChangedTimes == << << <<3>>, <<2>>, <<0>>, <<4>> >> >>
NewTimes == << << <<3>> >>, << <<5>>, <<2>> >> >>
WideTimes == << << <<3, 1>>, <<2, 4>>, <<6>> >>, << <<5, 7>>, <<2>> >> >>

Generations == DOMAIN Times

Max(numbers) == CHOOSE n \in numbers : \A other \in numbers : n >= other
Min(numbers) == CHOOSE n \in numbers : \A other \in numbers : n <= other

RowsOfCommit(generation, commit) == {<<generation, commit, file>> : file \in DOMAIN Times[generation][commit]}
AllRows == UNION {UNION {RowsOfCommit(g, c) : c \in DOMAIN Times[g]} : g \in Generations}
Time(row) == Times[row[1]][row[2]][row[3]]
HasForgettableKey(row) == row[3] = 1
(* A time of 0 is not a row: such a commit deletes the first row of the previous commit. *)
IsDeletion(row) == Time(row) = 0
DeletedBy(deletion) == <<deletion[1], deletion[2] - 1, 1>>
Deletions == {row \in AllRows : IsDeletion(row)}
LastTime == Max({Time(row) : row \in AllRows})

(* A position says, by generation, how many whole commits were read, and how many files of the next one.              *)
Unread == [g \in Generations |-> [version |-> 0, files |-> 0]]

IsBefore(row, position) == \/ row[2] <= position[row[1]].version
                           \/ row[2] = position[row[1]].version + 1 /\ row[3] <= position[row[1]].files
RowsBefore(position) ==
    LET deletions == {row \in Deletions : IsBefore(row, position)}
    IN  {row \in AllRows \ Deletions : IsBefore(row, position)} \ {DeletedBy(row) : row \in deletions}

(* A backfill reads in event order: of the commits that it knows, the rows before its frontier.                       *)
RowsRead(position, frontier) ==
    IF frontier = 0 THEN RowsBefore(position) ELSE {row \in RowsBefore(position) : Time(row) < frontier}

(* The watermark is the largest time in all completely read commits. A commit's rows are judged by the watermark of   *)
(* the commits before it.                                                                                             *)
WatermarkAt(position) == Max({0} \cup {Time(row) : row \in {r \in AllRows : r[2] <= position[r[1]].version}})
WatermarkBefore(row, position) ==
    Max({0} \cup {Time(r) : r \in {q \in AllRows : \/ q[1] < row[1] /\ q[2] <= position[q[1]].version
                                                   \/ q[1] = row[1] /\ q[2] < row[2]}})

LateAt(position) == {row \in RowsBefore(position) : Time(row) < WatermarkBefore(row, position)}
OpenAt(position) == {row \in RowsBefore(position) \ LateAt(position) : Time(row) >= WatermarkAt(position)}
FiredAt(position) == (RowsBefore(position) \ LateAt(position)) \ OpenAt(position)
=============================================================================

------------------------------ MODULE Tidegate ------------------------------
(* The protocol by which drivers turn a source into published tables, as docs/operations/recovery.md describes it.    *)
(* Steps are named as the driver reports them: planned, operated, committed, published.                               *)
(*                                                                                                                    *)
(* A driver may pause for any time between two steps and continue later (no fairness is assumed), or crash. The lease *)
(* may expire at any time, because its holder hung or another host's clock is ahead. A driver's view of a log may be  *)
(* stale by one entry. A log accepts an entry only if it has none of that number (put-if-absent), and the answer may  *)
(* be lost. Table rejects is left out: it does not differ from late in anything that matters here.                    *)
EXTENDS Source

CONSTANTS Drivers,      \* the processes
          Commands,     \* startable commands: subset of {"stream", "backfill", "restore", "reset", "forget",
                        \* "vacuum", "reopen", "prune", "optimize", "savepoint"}
          Others,       \* what else may happen: another writer does "set back" or "vacuum"; a cleanup "keeps several"
                        \* snapshots; a stream cleans up ("maintenance"); state has "deltas"
          MaxStarts,    \* number of commands that are started
          Calm,         \* number of first commands in which nothing crashes or hangs
          MaxEpochs,    \* number of the last epoch
          Stale,        \* TRUE: a listing may lack the newest entry
          Bug           \* the protection that is switched off; "none" for the protocol as it is

VARIABLES source,       \* generation, and number of existing commits
          state,        \* log of table state: a sequence of entries; entry.m is the manifest that is the head there
          tables,       \* by published table: its log (epoch and application id of each entry) and the files it lists
          folder,       \* the data files that exist, of all tables
          retained,     \* versions of table state that can be restored
          lease,        \* the driver that holds the lease, or Nobody
          driver,       \* by driver: its step, and the contents of its memory
          starts,       \* number of commands started
          tries,        \* number of plans made; it makes the names of files unique
          note,         \* position after the newest epoch that was completely published; only a bug reads it
          forgotten,    \* rows that completed commands `forget` erased, and the files that the last one listed
          erased,       \* rows that any epoch of `forget` or `prune` erased; a restore does not bring them back
          saved,        \* savepoints: the manifest and the files of each
          did           \* the dangerous thing that the last action did, or ""; no action reads it

vars == <<source, state, tables, folder, retained, lease, driver, starts, tries, note, forgotten, erased, saved, did>>

Published == <<"results", "late", "epochs">>
Names == {"results", "late", "epochs"}
Nobody == "nobody"
None == [epoch |-> 0]

Idle == [pc |-> "idle", cmd |-> "", at |-> 0, m |-> None, t |-> 0, opened |-> -1, then |-> "", listed |-> {},
         keep |-> {}, ends |-> [t \in Names |-> 0], began |-> 0]

Init ==
    /\ source = [generation |-> 1, commits |-> 1]
    /\ state = <<>>
    /\ tables = [t \in Names |-> [log |-> <<>>, files |-> {}]]
    /\ folder = {} /\ retained = {} /\ lease = Nobody
    /\ driver = [d \in Drivers |-> Idle]
    /\ starts = 0 /\ tries = 0 /\ note = Unread
    /\ forgotten = [rows |-> {}, listed |-> {}]
    /\ erased = {} /\ saved = {}
    /\ did = ""

(* ---- Manifests and files ---- *)

HeadAt(version) == IF version = 0 THEN None ELSE state[version].m
TheHead == HeadAt(Len(state))
IsSnapshot(m) == m.epoch > 0
PositionOf(m) == IF IsSnapshot(m) THEN m.position ELSE Unread
FrontierOf(m) == IF IsSnapshot(m) THEN m.frontier ELSE 0
LineOf(m) == IF IsSnapshot(m) THEN m.line ELSE {}
OpenOf(m) == IF IsSnapshot(m) THEN m.open ELSE {}
WatermarkOf(m) == IF IsSnapshot(m) THEN m.watermark ELSE 0

(* The newest epoch in a log up to a version, from Delta's transaction of our application.                            *)
EpochIn(log, version) == Max({0} \cup {log[v].epoch : v \in 1..version})
NewestEpoch(t) == EpochIn(tables[t].log, Len(tables[t].log))
NewestCommitted(version) == Max({0} \cup {state[v].m.epoch : v \in 1..version})
NewestOfAll == Max({NewestCommitted(Len(state))} \cup {NewestEpoch(t) : t \in Names})

(* The manifest of a committed epoch; the log keeps all of them, even those that retention has removed.               *)
CommittedAs(epoch) ==
    LET versions == {v \in 1..Len(state) : state[v].kind = "snapshot" /\ state[v].m.epoch = epoch}
    IN  IF versions = {} THEN None ELSE state[Min(versions)].m

(* A file has rows of one epoch. A compacted file is modelled as one file for each of its epochs, with the number of  *)
(* the copy.                                                                                                          *)
File(table, epoch, rows, id) == [of |-> table, epoch |-> epoch, rows |-> rows, id |-> id, copy |-> 0]
FilesWith(table, epoch, rows, id) == IF rows = {} THEN {} ELSE {File(table, epoch, rows, id)}
NoFiles == [t \in {"results", "late"} |-> {}]

NoEpochs == [t \in Names |-> {}]

(* A row no longer counts once it is retracted, or marked because it was reopened or deleted from the source.         *)
IsMinus(file) == file.of \in {"retracted", "marked"}
RowsIn(files) == UNION {f.rows : f \in {g \in files : ~IsMinus(g)}} \ UNION {f.rows : f \in {g \in files : IsMinus(g)}}

(* State of version 2 is a base, which does not change, and a delta with everything that has changed since.           *)
DeltaOf(m) == FilesWith("state", m.epoch, m.open \ UNION {f.rows : f \in m.base}, m.try)
StateFiles(m) == IF IsSnapshot(m) THEN m.base \cup DeltaOf(m) ELSE {}
BaseOf(m) == IF m.base = {} THEN StateFiles(m) ELSE m.base
ListedBy(m) == IF ~IsSnapshot(m) THEN {}
               ELSE m.files["results"] \cup m.files["late"] \cup m.back["results"] \cup m.back["late"]

Copies(files) == {[f EXCEPT !.copy = tries + 1] : f \in files}
HasSavepoints == "savepoint" \in Commands
CleansEarly == Bug = "forget cleans savepoints once the snapshots are gone"

(* ---- Steps that every command begins with ---- *)

Become(d, record) == driver' = [driver EXCEPT ![d] = record]
End(d, event) == /\ Become(d, Idle)
                 /\ lease' = IF lease = d THEN Nobody ELSE lease
                 /\ did' = event

Listing(length) == IF Stale /\ length > 0 THEN {length, length - 1} ELSE {length}

(* The application id under which a driver commits to tables; the same for all drivers, unless it is the timeline's.   *)
ApplicationAtStart == IF Bug = "all timelines share one application id" /\ IsSnapshot(TheHead) THEN TheHead.timeline
                      ELSE 0

Start(d, cmd) ==
    /\ driver[d].pc = "idle" /\ starts < MaxStarts
    /\ starts' = starts + 1
    /\ IF cmd = "savepoint" THEN lease' = lease ELSE lease = Nobody /\ lease' = d  \* a copy takes no lease
    /\ Become(d, [Idle EXCEPT !.pc = "started", !.cmd = cmd, !.began = ApplicationAtStart])
    /\ did' = IF \E other \in Drivers \ {d} : driver[other].pc # "idle" THEN "two drivers work at the same time"
              ELSE IF state = <<>> THEN "first start"
              ELSE IF \A t \in Names : NewestEpoch(t) = TheHead.epoch THEN "rerun after a clean end"
              ELSE "rerun of an epoch that is not published"
    /\ UNCHANGED <<source, state, tables, folder, retained, tries, note, forgotten, erased, saved>>

(* Recovery compares the head with the epochs of all tables, including state. It refuses a head that is behind a      *)
(* table; otherwise it rolls forward.                                                                                 *)
Recover(d) ==
    /\ driver[d].pc = "started"
    /\ \E version \in Listing(Len(state)) :
         LET head == HeadAt(version)
             isBehind == \/ NewestCommitted(version) > head.epoch
                         \/ \E t \in Names : NewestEpoch(t) > head.epoch
             isRestore == driver[d].cmd = "restore"
             \* A restore leaves the newest epoch that any table has, even if the head is another one.
             m == IF isRestore THEN CommittedAs(NewestOfAll) ELSE head
             ready == [driver[d] EXCEPT !.pc = "ready", !.at = version]
             skips == \/ Bug = "recovery rolls forward" \/ driver[d].cmd \in {"optimize", "savepoint"}
                     \/ (isBehind /\ Bug = "a head behind the tables is refused")
         IN  IF isBehind /\ Bug # "a head behind the tables is refused" /\ ~isRestore
             THEN End(d, "a head behind the tables is refused")
             ELSE /\ Become(d, IF skips \/ ~IsSnapshot(m) THEN ready
                               ELSE [ready EXCEPT !.pc = "publishing", !.m = m, !.t = 1, !.then = "ready"])
                  /\ did' = IF version < Len(state) THEN "a stale listing of state is believed" ELSE ""
                  /\ UNCHANGED lease
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* Between two epochs, a driver notices that another one has committed. It recovers, and then continues from there.   *)
LookAgain(d) ==
    /\ driver[d].pc = "ready" /\ driver[d].cmd \in {"stream", "backfill"}
    /\ TheHead.epoch > HeadAt(driver[d].at).epoch
    /\ Become(d, IF Bug = "a snapshot is published before an epoch starts from it"
                 THEN [driver[d] EXCEPT !.at = Len(state)] ELSE [driver[d] EXCEPT !.pc = "started"])
    /\ did' = "a driver goes on from another one's epoch"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, tries, note, forgotten, erased, saved>>

(* ---- planned ---- *)

Ready(d, cmd) == driver[d].pc = "ready" /\ driver[d].cmd = cmd /\ tries < 2 * MaxEpochs + 2

Planned(d, m) == /\ m.epoch <= MaxEpochs
                 /\ Become(d, [driver[d] EXCEPT !.pc = "planned", !.m = m])
                 /\ tries' = tries + 1

(* An epoch that reads: rows is what it reads, and watermark, pending, position and frontier are those at its end.    *)
Reading(base, kind, rows, watermark, pending, position, frontier, isLate(_)) ==
    LET epoch == base.epoch + 1
        late == {row \in rows : isLate(row)}
        alive == OpenOf(base) \cup (rows \ late)
        fired == {row \in alive : Time(row) < watermark}
    IN  [epoch |-> epoch, try |-> tries + 1, kind |-> kind, generation |-> source.generation,
         timeline |-> IF IsSnapshot(base) THEN base.timeline ELSE 1, line |-> LineOf(base) \cup {epoch},
         position |-> position, frontier |-> frontier, watermark |-> watermark, pending |-> pending,
         open |-> alive \ fired, base |-> {},
         files |-> [t \in {"results", "late"} |->
                        FilesWith(t, epoch, IF t = "results" THEN fired ELSE late, tries + 1)],
         remove |-> NoEpochs, back |-> [t \in Names |-> {}], forget |-> {}]

(* An idle epoch reads nothing. *)
Quiet(from, kind, epoch, timeline, line) ==
    [from EXCEPT !.epoch = epoch, !.try = tries + 1, !.kind = kind, !.timeline = timeline, !.line = line,
                 !.files = NoFiles, !.remove = NoEpochs, !.back = [t \in Names |-> {}], !.forget = {}]

StreamRefuses(base) == /\ IsSnapshot(base) /\ base.generation # source.generation
                       /\ Bug # "a position belongs to one source"

(* Where the unread rows begin, by the position of the head. *)
Begin(base) ==
    LET position == IF Bug = "the position is the manifest's" THEN note ELSE PositionOf(base)
        at == position[source.generation]
        \* Without the check, the old table's version number would be read as a version of the new table.
        misread == [version |-> position[1].version, files |-> 0]
    IN  IF Bug = "files that were read are part of the position" THEN [position EXCEPT ![source.generation].files = 0]
        ELSE IF IsSnapshot(base) /\ base.generation # source.generation
        THEN [position EXCEPT ![source.generation] = misread] ELSE position

PlanStream(d) ==
    /\ Ready(d, "stream")
    /\ LET base == HeadAt(driver[d].at)
           begin == Begin(base)
           at == begin[source.generation]
           next == at.version + 1
           count == Len(Times[source.generation][next])
           before == IF Bug = "event time is part of the snapshot" THEN 0 ELSE WatermarkOf(base)
           halves == IF Bug = "half a commit's times are part of the snapshot" \/ ~IsSnapshot(base) THEN 0
                     ELSE base.pending
       IN  /\ ~StreamRefuses(base) /\ FrontierOf(base) = 0 /\ at.version < source.commits
           /\ ~IsDeletion(<<source.generation, next, 1>>)
           /\ \E files \in (at.files + 1)..count :  \* limits cut an epoch after any file
                LET rows == {<<source.generation, next, file>> : file \in (at.files + 1)..files}
                    times == Max({halves} \cup {Time(row) : row \in rows})
                    isWhole == files = count
                    end == [begin EXCEPT ![source.generation] =
                                IF isWhole THEN [version |-> next, files |-> 0] ELSE [@ EXCEPT !.files = files]]
                    IsLate(row) == Time(row) < before
                    m == Reading(base, "stream", rows, IF isWhole THEN Max({before, times}) ELSE before,
                                 IF isWhole THEN 0 ELSE times, end, 0, IsLate)
                IN  \/ /\ Planned(d, m)
                       /\ did' = IF isWhole THEN "" ELSE "half a commit is read"
                    \/ /\ "deltas" \in Others /\ IsSnapshot(base) /\ BaseOf(base) # {}
                       /\ Planned(d, [m EXCEPT !.base = BaseOf(base)])
                       /\ did' = IF base.base = {} THEN "a delta is written" ELSE "a delta replaces another one"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* A stream that follows a backfill first reads the rows that the backfill left unread in the commits that it knew. *)
PlanHandOver(d) ==
    /\ Ready(d, "stream")
    /\ LET base == HeadAt(driver[d].at)
           rows == RowsRead(PositionOf(base), 0) \ RowsRead(PositionOf(base), FrontierOf(base))
           IsLate(row) == FALSE
       IN  /\ ~StreamRefuses(base) /\ FrontierOf(base) > 0
           /\ Planned(d, Reading(base, "handover", rows, Max({WatermarkOf(base)} \cup {Time(r) : r \in rows}), 0,
                                 PositionOf(base), 0, IsLate))
    /\ did' = "a stream takes over from a backfill"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* An interval of a backfill. Rows before it that have arrived since are added to their windows, as a correction. *)
PlanInterval(d) ==
    /\ Ready(d, "backfill")
    /\ LET base == HeadAt(driver[d].at)
           frontier == FrontierOf(base) + 2
           position == [PositionOf(base) EXCEPT ![source.generation] = [version |-> source.commits, files |-> 0]]
           rows == RowsRead(position, frontier) \ (IF IsSnapshot(base) THEN RowsRead(PositionOf(base), FrontierOf(base))
                                                   ELSE {})
           IsLate(row) == FALSE
       IN  /\ ~StreamRefuses(base) /\ (IsSnapshot(base) => FrontierOf(base) > 0) /\ FrontierOf(base) <= LastTime
           /\ Planned(d, Reading(base, "interval", rows, frontier, 0, position, frontier, IsLate))
    /\ did' = ""
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* A version of the source deletes a row. The stream removes it from state, or retracts what it published for it.     *)
PlanChange(d) ==
    /\ Ready(d, "stream")
    /\ LET base == HeadAt(driver[d].at)
           g == source.generation
           deletion == <<g, PositionOf(base)[g].version + 1, 1>>
           gone == {DeletedBy(deletion)}
           epoch == base.epoch + 1
           quiet == Quiet(base, "change", epoch, base.timeline, base.line \cup {epoch})
           Shown(t) == RowsIn(tables[t].files)
           retracted == IF Bug = "a correction retracts what it replaces" THEN {} ELSE gone \cap Shown("results")
           late == gone \cap Shown("late")
       IN  /\ IsSnapshot(base) /\ ~StreamRefuses(base) /\ deletion[2] <= source.commits /\ IsDeletion(deletion)
           /\ Planned(d, [quiet EXCEPT !.position[g] = [version |-> deletion[2], files |-> 0], !.open = @ \ gone,
                                       !.files = [results |-> FilesWith("retracted", epoch, retracted, tries + 1),
                                                  late |-> FilesWith("marked", epoch, late, tries + 1)]])
    /\ did' = "a row that was deleted from the source is retracted"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* Late rows are added to their windows, which have passed: they become results, and table late marks them.           *)
PlanReopen(d) ==
    /\ Ready(d, "reopen")
    /\ LET base == HeadAt(driver[d].at)
           late == RowsIn(tables["late"].files)
           epoch == base.epoch + 1
           quiet == Quiet(base, "reopen", epoch, base.timeline, base.line \cup {epoch})
           marked == IF Bug = "a reopened row is marked" THEN {} ELSE late
       IN  /\ IsSnapshot(base) /\ late # {}
           /\ Planned(d, [quiet EXCEPT !.files = [results |-> FilesWith("results", epoch, late, tries + 1),
                                                  late |-> FilesWith("marked", epoch, marked, tries + 1)]])
    /\ did' = "late rows are reopened"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* Late rows of all epochs up to one are removed. *)
PlanPrune(d) ==
    /\ Ready(d, "prune")
    /\ LET base == HeadAt(driver[d].at)
           epoch == base.epoch + 1
           quiet == Quiet(base, "prune", epoch, base.timeline, base.line \cup {epoch})
       IN  /\ IsSnapshot(base)
           /\ \E last \in {f.epoch : f \in tables["late"].files} :
                Planned(d, [quiet EXCEPT !.remove["late"] = {e \in {f.epoch : f \in tables["late"].files} : e <= last}])
    /\ did' = "late rows are pruned"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

Prunes == {state[v].m : v \in {w \in 1..Len(state) : state[w].kind = "snapshot" /\ state[w].m.kind = "prune"}}
PrunedUpTo(m) == Max({0} \cup m.remove["late"])
RowsPruned(m) ==
    IF m.kind # "prune" THEN {}
    ELSE LET manifests == {state[v].m : v \in {w \in 1..Len(state) : state[w].m.epoch <= PrunedUpTo(m)}}
         IN  UNION {f.rows : f \in UNION {old.files["late"] : old \in manifests}}

(* A restore opens state, looks for its target among the retained snapshots and the savepoints, and leaves the        *)
(* current lineage of the tables. Rows that an abandoned lineage published reappear with it, if they still exist.     *)
PlanRestore(d) ==
    /\ Ready(d, "restore")
    /\ \E then \in {HeadAt(v) : v \in retained} \cup {s.m : s \in saved} :
         LET newest == CommittedAs(NewestOfAll)
             epoch == IF Bug = "epoch numbers only grow" THEN then.epoch + 1 ELSE NewestOfAll + 1
             gone == newest.line \ then.line
             known == {HeadAt(v).epoch : v \in retained} \cup {then.epoch}
             returning == {CommittedAs(e) : e \in (then.line \ newest.line) \cap known}
             pruned == IF Bug = "a restore brings back no pruned rows" THEN 0
                       ELSE Max({0} \cup {PrunedUpTo(m) : m \in Prunes})
             FilesOf(m, t) == IF t = "late" THEN {f \in m.files[t] : f.epoch > pruned} ELSE m.files[t]
             back == [t \in Names |->
                        IF t = "epochs" THEN {File("epochs", m.epoch, {}, -tries) : m \in returning}
                        ELSE UNION {FilesOf(m, t) : m \in returning}]
             isLoss == \/ ~(then.line \ newest.line \subseteq known)
                       \/ ~(back["results"] \cup back["late"] \subseteq folder)
             quiet == Quiet(then, "restore", epoch, newest.timeline + 1, then.line \cup {epoch})
         IN  /\ then.epoch < newest.epoch \/ TheHead # newest
             /\ IF isLoss /\ Bug # "a restore that would lose rows is refused"
                THEN End(d, "a restore that would lose rows is refused") /\ tries' = tries
                ELSE /\ Planned(d, [quiet EXCEPT !.remove = [t \in Names |-> gone], !.back = back])
                     /\ lease' = lease
                     /\ did' = IF returning # {} THEN "a restore brings back a line that was left"
                               ELSE IF TheHead # newest THEN "a restore after state was set back"
                               ELSE IF \A v \in retained : HeadAt(v).epoch # then.epoch
                               THEN "a savepoint is restored whose snapshot is gone" ELSE "a restore"
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, note, forgotten, erased, saved>>

PlanReset(d) ==
    /\ Ready(d, "reset")
    /\ LET base == HeadAt(driver[d].at)
           quiet == Quiet(base, "reset", base.epoch + 1, base.timeline, base.line \cup {base.epoch + 1})
       IN  /\ IsSnapshot(base) /\ base.generation # source.generation
           /\ Planned(d, [quiet EXCEPT !.generation = source.generation, !.pending = 0])
    /\ did' = "a source is reset"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

PlanForget(d) ==
    /\ Ready(d, "forget")
    /\ LET base == HeadAt(driver[d].at)
           \* Even if only an older snapshot holds the key, because an earlier command was interrupted.
           files == tables["results"].files \cup tables["late"].files \cup UNION {StateFiles(HeadAt(v)) : v \in retained}
           held == base.open \cup UNION {f.rows : f \in files}
           gone == {row \in held : HasForgettableKey(row)}
           keeps == \/ Bug = "forget writes a base without the key"
                    \/ gone \cap UNION {f.rows : f \in base.base} = {}
           quiet == Quiet(base, "forget", base.epoch + 1, base.timeline, base.line \cup {base.epoch + 1})
       IN  /\ IsSnapshot(base) /\ gone # {}
           /\ Planned(d, [quiet EXCEPT !.open = @ \ gone, !.forget = gone, !.base = IF keeps THEN @ ELSE {}])
    /\ did' = "a key is forgotten"
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

(* Nothing is left to do, or the command is refused: it ends, and releases the lease. *)
EndCleanly(d) ==
    /\ driver[d].pc = "ready"
    /\ LET base == HeadAt(driver[d].at) IN
       End(d, IF driver[d].cmd = "stream" /\ StreamRefuses(base) THEN "another source is refused"
              ELSE IF driver[d].cmd = "backfill" /\ IsSnapshot(base) /\ FrontierOf(base) = 0
              THEN "a backfill behind a stream is refused" ELSE "")
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* ---- operated ---- *)

Operate(d) ==
    /\ driver[d].pc = "planned"
    /\ LET m == driver[d].m
           new == m.files["results"] \cup m.files["late"] \cup StateFiles(m)
           left == {f \in folder : f.epoch = m.epoch /\ f.of = "results" /\ f \notin tables["results"].files}
       IN  /\ folder' = folder \cup new
           /\ Become(d, [driver[d] EXCEPT !.pc = "operated"])
           /\ did' = IF left # {} THEN "files of a failed attempt lie there" ELSE ""
    /\ UNCHANGED <<source, state, tables, retained, lease, starts, tries, note, forgotten, erased, saved>>

(* The files must exist. Between this step and the commit, no other writer may run VACUUM, but our own cleanup may   *)
(* run.                                                                                                               *)
CheckFiles(d) ==
    /\ driver[d].pc = "operated"
    /\ LET planned == driver[d].m
           lying == {f \in folder : f.of = "results" /\ f.epoch = planned.epoch}
           m == IF Bug = "only reported files are published" /\ planned.kind = "stream"
                THEN [planned EXCEPT !.files["results"] = lying] ELSE planned
           isThere == ListedBy(m) \cup StateFiles(m) \subseteq folder
       IN  IF isThere \/ Bug = "each file exists before it is committed"
           THEN /\ Become(d, [driver[d] EXCEPT !.pc = "checked", !.m = m])
                /\ did' = "" /\ UNCHANGED lease
           ELSE End(d, "a file is gone before its commit")
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* ---- committed: the commit point, and the fence ---- *)

Commits(me, version) == [me EXCEPT !.pc = "publishing", !.t = 1, !.opened = -1, !.then = "published", !.at = version]

Commit(d) ==
    /\ driver[d].pc = "checked"
    /\ LET me == driver[d]
           fits == Len(state) = me.at
       IN  IF fits \/ Bug = "the state commit allows no retry"
           THEN /\ state' = Append(state, [kind |-> "snapshot", m |-> me.m])
                /\ retained' = retained \cup {Len(state) + 1}
                /\ erased' = erased \cup me.m.forget \cup RowsPruned(me.m)
                /\ \/ Become(d, Commits(me, Len(state) + 1)) /\ did' = ""
                   \/ fits /\ Become(d, [me EXCEPT !.pc = "asking"]) /\ did' = "the answer to a commit is lost"
           ELSE Become(d, [me EXCEPT !.pc = "asking"]) /\ did' = "" /\ UNCHANGED <<state, retained, erased, saved>>
    /\ UNCHANGED <<source, tables, folder, lease, starts, tries, note, forgotten, saved>>

(* An error does not say whether the entry was written. So the driver reads the entry to see whose it is: each has an *)
(* id.                                                                                                                *)
LookWhoseEntryItIs(d) ==
    /\ driver[d].pc = "asking"
    /\ LET me == driver[d]
           entry == state[me.at + 1]
           isMine == entry.kind = "snapshot" /\ entry.m.try = me.m.try
       IN  IF isMine \/ Bug = "a commit knows its own entry"
           THEN Become(d, Commits(me, me.at + 1)) /\ did' = "" /\ UNCHANGED lease
           ELSE End(d, IF entry.kind = "fence" THEN "a cleanup fences a driver that hung"
                       ELSE "the fence stops the second driver")
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* ---- published ---- *)

IsPublished(m, t, version, application) ==
    LET ours == SelectSeq(SubSeq(tables[t].log, 1, version), LAMBDA entry : entry.application = application)
    IN  EpochIn(ours, Len(ours)) >= m.epoch /\ Bug # "an epoch is published once"

NextTable(me) == IF me.t < Len(Published) THEN [me EXCEPT !.t = @ + 1, !.opened = -1]
                 ELSE [me EXCEPT !.pc = me.then, !.t = 0, !.opened = -1, !.m = IF me.then = "ready" THEN None ELSE @]

OpenTable(d) ==
    /\ driver[d].pc = "publishing" /\ driver[d].opened = -1
    /\ LET me == driver[d]
           t == Published[me.t]
       IN  \E version \in Listing(Len(tables[t].log)) :
             IF IsPublished(me.m, t, version, me.began)
             THEN /\ Become(d, NextTable(me))
                  /\ did' = IF NewestEpoch(t) > me.m.epoch THEN "a hung driver publishes behind another epoch"
                            ELSE IF me.then = "ready" THEN "" ELSE "another driver published this epoch"
             ELSE Become(d, [me EXCEPT !.opened = version]) /\ did' = ""
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, tries, note, forgotten, erased, saved>>

(* The files that a table lists after an epoch: rows of removed epochs and forgotten rows are removed, others are     *)
(* restored.                                                                                                          *)
After(m, t) ==
    LET stays == Bug = "a restore takes back the marks of a reopening"
        rest == {f \in tables[t].files : f.epoch \notin m.remove[t] \/ (stays /\ f.of = "marked")}
        changed == {f \in rest : f.rows \cap m.forget # {}}
        rewritten == {[f EXCEPT !.rows = @ \ m.forget] : f \in changed}
        own == IF t = "epochs" THEN {File("epochs", m.epoch, {}, Len(tables[t].log) + 1)} ELSE m.files[t]
    IN  (rest \ changed) \cup {f \in rewritten : f.rows # {}} \cup own \cup m.back[t]

PutTable(d) ==
    /\ driver[d].pc = "publishing" /\ driver[d].opened >= 0
    /\ LET me == driver[d]
           t == Published[me.t]
           fits == Len(tables[t].log) = me.opened
       IN  IF fits \/ Bug = "a table is published by the handle that was checked"
           THEN /\ tables' = [tables EXCEPT ![t] = [log |-> Append(@.log, [epoch |-> me.m.epoch,
                                                                          application |-> me.began]),
                                                    files |-> After(me.m, t)]]
                /\ folder' = folder \cup {f \in After(me.m, t) : f \notin tables[t].files /\ f \notin ListedBy(me.m)}
                /\ Become(d, NextTable(me))
                /\ did' = IF me.then = "ready" THEN "recovery publishes" ELSE ""
           ELSE /\ Become(d, [me EXCEPT !.opened = -1])  \* outrun: open again, check again, commit again
                /\ did' = "a table moved between look and commit"
                /\ UNCHANGED <<tables, folder>>
    /\ UNCHANGED <<source, state, retained, lease, starts, tries, note, forgotten, erased, saved>>

Finish(d) ==
    /\ driver[d].pc = "published"
    /\ LET me == driver[d]
           again == [me EXCEPT !.pc = "ready", !.m = None]
       IN  /\ note' = IF me.m.generation = source.generation THEN me.m.position ELSE note
           /\ Become(d, IF me.cmd \in {"stream", "backfill"} THEN again
                        ELSE IF me.cmd = "forget" THEN [me EXCEPT !.pc = IF HasSavepoints /\ CleansEarly THEN "cleaning"
                                                                         ELSE "listing"]
                        ELSE Idle)
           /\ lease' = IF me.cmd \notin {"stream", "backfill", "forget"} /\ lease = d THEN Nobody ELSE lease
    /\ did' = ""
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, forgotten, erased, saved>>

(* ---- Cleanup: list, fence, delete. `forget` ends with it; `vacuum` consists of it. The newest snapshot is kept,   *)
(* and one more by a cleanup that keeps several. `vacuum` decides what it deletes when it lists, `forget`            *)
(* afterwards.                                                                                                        *)

NeededBy(versions) ==
    UNION {tables[t].files : t \in Names}
    \cup UNION {ListedBy(HeadAt(v)) \cup (IF Bug = "the base of a delta is part of its version" THEN DeltaOf(HeadAt(v))
                                          ELSE StateFiles(HeadAt(v))) : v \in versions}

CopiesIn(files) == {f \in files : f.of = "savepoint"}

List(d) ==
    /\ \/ driver[d].pc = "listing"
       \/ /\ driver[d].pc = "ready" /\ IsSnapshot(HeadAt(driver[d].at))
          /\ driver[d].cmd = "vacuum" \/ (driver[d].cmd = "stream" /\ "maintenance" \in Others)
    /\ \E keep \in {{}} \cup (IF "keeps several" \notin Others \/ driver[d].cmd = "forget" THEN {}
                             ELSE {{v} : v \in retained \ {Max(retained)}}) :
         /\ driver[d].cmd = "stream" => Cardinality(retained) > Cardinality(keep) + 1
         /\ LET known == IF Bug = "a cleanup keeps the files of each kept snapshot" THEN {} ELSE keep
                listed == IF driver[d].cmd = "forget" THEN folder ELSE folder \ NeededBy(known \cup {Len(state)})
            IN  /\ Become(d, [driver[d] EXCEPT !.pc = "listed", !.listed = listed \ CopiesIn(listed), !.at = Len(state),
                                               !.keep = keep, !.ends = [t \in Names |-> Len(tables[t].log)]])
                /\ did' = IF keep # {} THEN "a cleanup keeps an older snapshot"
                          ELSE IF \E other \in Drivers \ {d} : driver[other].pc \in {"operated", "checked"}
                          THEN "a cleanup lists files that are not committed" ELSE ""
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, tries, note, forgotten, erased, saved>>

Fence(d) ==
    /\ driver[d].pc = "listed"
    /\ LET me == driver[d]
           fits == Len(state) = me.at /\ \A t \in Names : Len(tables[t].log) = me.ends[t]
           goesOn == [me EXCEPT !.pc = "fenced", !.at = Len(state) + 1]
       IN  IF Bug = "a cleanup fences the tables"
           THEN /\ retained' = {Len(state)} \cup me.keep /\ Become(d, [goesOn EXCEPT !.at = Len(state)])
                /\ did' = "" /\ UNCHANGED <<state, tables, lease>>
           ELSE IF fits
           THEN /\ state' = Append(state, [kind |-> "fence", m |-> TheHead])
                /\ tables' = [t \in Names |-> [tables[t] EXCEPT !.log = Append(@, [epoch |-> 0, application |-> 0])]]
                /\ retained' = {Len(state) + 1} \cup me.keep
                                \cup (IF Bug = "forget leaves only the newest snapshot" THEN retained ELSE {})
                /\ Become(d, goesOn) /\ did' = "" /\ UNCHANGED lease
           ELSE /\ IF me.cmd = "stream" THEN Become(d, [me EXCEPT !.pc = "started", !.listed = {}]) /\ lease' = lease
                                            /\ did' = "a cleanup is outrun"
                   ELSE End(d, "a cleanup is outrun")
                /\ UNCHANGED <<state, tables, retained>>
    /\ UNCHANGED <<source, folder, starts, tries, note, forgotten, erased, saved>>

Delete(d) ==
    /\ driver[d].pc = "fenced"
    /\ LET me == driver[d]
           needed == IF me.cmd = "forget" THEN NeededBy(me.at..Len(state)) ELSE {}
           isLast == me.cmd = "forget" /\ (~HasSavepoints \/ CleansEarly)
           event == IF Len(state) > me.at THEN "a cleanup deletes after another epoch was committed" ELSE ""
       IN  /\ folder' = folder \ (me.listed \ needed)
           /\ forgotten' = IF isLast THEN [rows |-> forgotten.rows \cup me.m.forget, listed |-> me.listed] ELSE forgotten
           /\ \/ /\ me.cmd = "forget" /\ ~isLast
                 /\ Become(d, [me EXCEPT !.pc = "cleaning"]) /\ lease' = lease /\ did' = event
              \/ /\ me.cmd = "stream"
                 /\ Become(d, [me EXCEPT !.pc = "ready", !.listed = {}, !.keep = {}]) /\ lease' = lease
                 /\ did' = "a stream cleans up between two epochs"
              \/ (me.cmd = "vacuum" \/ isLast) /\ End(d, event)
    /\ UNCHANGED <<source, state, tables, retained, starts, tries, note, erased, saved>>

(* ---- Savepoints: copy the files of a snapshot, complete the copy, check whether a key was forgotten in the         *)
(* meantime ----                                                                                                      *)

CopySnapshot(d) ==
    /\ Ready(d, "savepoint")
    /\ \E v \in {w \in 1..Len(state) : state[w].kind = "snapshot" /\ StateFiles(HeadAt(w)) \subseteq folder} :
         LET files == StateFiles(HeadAt(v))
             copies == IF Bug = "a savepoint has files of its own" THEN files
                       ELSE {[f EXCEPT !.of = "savepoint"] : f \in Copies(files)}
         IN  /\ folder' = folder \cup copies
             /\ Become(d, [driver[d] EXCEPT !.pc = "copied", !.m = HeadAt(v), !.at = v, !.listed = copies])
    /\ tries' = tries + 1 /\ did' = ""
    /\ UNCHANGED <<source, state, tables, retained, lease, starts, note, forgotten, erased, saved>>

CompleteCopy(d) ==
    /\ driver[d].pc = "copied"
    /\ IF driver[d].listed \subseteq folder
       THEN /\ saved' = saved \cup {[m |-> driver[d].m, files |-> driver[d].listed]}
            /\ Become(d, [driver[d] EXCEPT !.pc = "saved"]) /\ did' = "a savepoint is made" /\ lease' = lease
       ELSE End(d, "a copy is incomplete") /\ saved' = saved
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased>>

LookForForget(d) ==
    /\ driver[d].pc = "saved"
    /\ LET me == driver[d]
           mayHold == \/ me.at \notin retained
                      \/ \E v \in 1..Len(state) : state[v].m.kind = "forget" /\ state[v].m.epoch > me.m.epoch
           deleted == {s \in saved : s.files = me.listed /\ s.m = me.m}
       IN  /\ saved' = IF mayHold THEN saved \ deleted ELSE saved
           /\ folder' = IF mayHold THEN folder \ UNION {s.files : s \in deleted} ELSE folder
    /\ End(d, "")
    /\ UNCHANGED <<source, state, tables, retained, starts, tries, note, forgotten, erased>>

(* `forget` removes incomplete copies, and removes the key from the others. *)
CleanSavepoints(d) ==
    /\ driver[d].pc = "cleaning"
    /\ LET me == driver[d]
           gone == me.m.forget
           Without(f) == [f EXCEPT !.rows = @ \ gone]
           clean == {[m |-> [s.m EXCEPT !.open = @ \ gone], files |-> {Without(f) : f \in s.files}] : s \in saved}
       IN  /\ saved' = clean
           /\ folder' = (folder \ CopiesIn(folder)) \cup UNION {s.files : s \in clean}
           /\ IF CleansEarly THEN Become(d, [me EXCEPT !.pc = "listing"]) /\ did' = "" /\ UNCHANGED <<forgotten, lease>>
              ELSE /\ forgotten' = [rows |-> forgotten.rows \cup gone, listed |-> me.listed]
                   /\ End(d, IF saved # {} THEN "a key is forgotten in a savepoint"
                             ELSE IF CopiesIn(folder) # {} THEN "a key is forgotten while a savepoint is copied" ELSE "")
    /\ UNCHANGED <<source, state, tables, retained, starts, tries, note, erased>>

(* ---- Optimize: read the files of a table, write their rows to new files, and replace the old files ---- *)

Compact(d) ==
    /\ Ready(d, "optimize")
    /\ \E t \in {"results", "late"} :
         LET files == tables[t].files IN
         /\ files # {}
         /\ folder' = folder \cup Copies(files)
         /\ Become(d, [driver[d] EXCEPT !.pc = "compacted", !.t = CHOOSE n \in 1..3 : Published[n] = t,
                                        !.opened = Len(tables[t].log), !.listed = files,
                                        !.keep = Copies(files)])
    /\ tries' = tries + 1 /\ did' = ""
    /\ UNCHANGED <<source, state, tables, retained, lease, starts, note, forgotten, erased, saved>>

Replace(d) ==
    /\ driver[d].pc = "compacted"
    /\ LET me == driver[d]
           t == Published[me.t]
           fits == Len(tables[t].log) = me.opened /\ me.keep \subseteq folder
       IN  IF fits \/ Bug = "a compaction replaces only what it read"
           THEN /\ tables' = [tables EXCEPT ![t] = [log |-> Append(@.log, [epoch |-> 0, application |-> 0]),
                                                    files |-> (@.files \ me.listed) \cup me.keep]]
                /\ End(d, "a table is compacted")
           ELSE End(d, "a compaction is outrun") /\ UNCHANGED tables
    /\ UNCHANGED <<source, state, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* ---- What happens to drivers, and the actions of others ---- *)

Crash(d) ==
    \* After the last start, a crash affects nothing that is checked.
    /\ driver[d].pc # "idle" /\ starts < MaxStarts /\ starts > Calm
    /\ End(d, CASE driver[d].pc = "planned" -> "a crash after planned"
                [] driver[d].pc \in {"operated", "checked"} -> "a crash after operated"
                [] driver[d].pc = "publishing" /\ driver[d].t = 1 -> "a crash after committed"
                [] driver[d].pc = "publishing" /\ driver[d].t = 2 -> "a crash after published results"
                [] driver[d].pc = "publishing" /\ driver[d].t = 3 -> "a crash after published late"
                [] driver[d].pc = "asking" -> "a crash before a lost answer is looked up"
                [] driver[d].pc = "published" -> "a crash after published epochs"
                [] driver[d].pc \in {"listing", "listed", "fenced", "cleaning"} -> "a crash within a cleanup"
                [] OTHER -> "")
    \* If a commit were not durable, a power loss could undo it after its results were published.
    /\ state' = IF Bug = "a commit is durable before the next step" /\ driver[d].pc = "publishing"
                THEN SubSeq(state, 1, Len(state) - 1) ELSE state
    /\ UNCHANGED <<source, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

(* The holder hangs, or a clock is ahead. *)
LeaseRunsOut ==
    /\ lease # Nobody /\ Cardinality(Drivers) > 1 /\ starts < MaxStarts /\ starts > Calm
    /\ lease' = Nobody /\ did' = ""
    /\ UNCHANGED <<source, state, tables, folder, retained, driver, starts, tries, note, forgotten, erased, saved>>

(* A driver checks its lease before it commits and before it publishes to each table. It may also not check it.       *)
LeaseIsLost(d) ==
    /\ driver[d].pc \in {"checked", "publishing", "listed", "fenced"} /\ lease \notin {d, Nobody}
    /\ End(d, "a driver finds its lease lost")
    /\ UNCHANGED <<source, state, tables, folder, retained, starts, tries, note, forgotten, erased, saved>>

SourceCommit ==
    /\ source.commits < Len(Times[source.generation])
    /\ source' = [source EXCEPT !.commits = @ + 1] /\ did' = ""
    /\ UNCHANGED <<state, tables, folder, retained, lease, driver, starts, tries, note, forgotten, erased, saved>>

SourceIsReplaced ==
    /\ "reset" \in Commands /\ source.generation = 1 /\ IsSnapshot(TheHead)
    /\ source' = [generation |-> 2, commits |-> 1] /\ did' = ""
    /\ UNCHANGED <<state, tables, folder, retained, lease, driver, starts, tries, note, forgotten, erased, saved>>

(* RESTORE of table state to an older version, by another engine. *)
StateIsSetBack ==
    /\ "set back" \in Others /\ \A v \in 1..Len(state) : state[v].kind # "set back"
    /\ \E v \in retained : /\ v < Len(state) /\ HeadAt(v) # TheHead
                           /\ state' = Append(state, [kind |-> "set back", m |-> HeadAt(v)])
                           /\ retained' = retained \cup {Len(state) + 1}
    /\ did' = "another engine sets state back"
    /\ UNCHANGED <<source, tables, folder, lease, driver, starts, tries, note, forgotten, erased, saved>>

(* VACUUM by another engine removes files that no table lists and no manifest needs. *)
OtherVacuum ==
    /\ "vacuum" \in Others /\ \A d \in Drivers : driver[d].pc # "checked"
    /\ LET kept == folder \cap NeededBy(1..Len(state)) IN folder' = kept /\ kept # folder
    /\ did' = "another engine removes files that are not committed"
    /\ UNCHANGED <<source, state, tables, retained, lease, driver, starts, tries, note, forgotten, erased, saved>>

(* The actions of a driver that neither crashes nor hangs. *)
Moves(d) ==
    \/ Recover(d) \/ LookAgain(d)
    \/ PlanStream(d) \/ PlanHandOver(d) \/ PlanInterval(d) \/ PlanRestore(d) \/ PlanReset(d) \/ PlanForget(d)
    \/ PlanChange(d) \/ PlanReopen(d) \/ PlanPrune(d) \/ EndCleanly(d)
    \/ Operate(d) \/ CheckFiles(d) \/ Commit(d) \/ LookWhoseEntryItIs(d)
    \/ OpenTable(d) \/ PutTable(d) \/ Finish(d)
    \/ List(d) \/ Fence(d) \/ Delete(d) \/ CleanSavepoints(d)
    \/ CopySnapshot(d) \/ CompleteCopy(d) \/ LookForForget(d) \/ Compact(d) \/ Replace(d)

Next ==
    \/ \E d \in Drivers : (\E cmd \in Commands : Start(d, cmd)) \/ Moves(d) \/ Crash(d) \/ LeaseIsLost(d)
    \/ LeaseRunsOut \/ SourceCommit \/ SourceIsReplaced \/ StateIsSetBack \/ OtherVacuum

Spec == Init /\ [][Next]_vars

(* A command is started again whenever it ends, and no driver hangs forever. After the last start, none crashes.      *)
FairSpec == Spec /\ \A d \in Drivers : WF_vars(Moves(d)) /\ WF_vars(\E cmd \in Commands : Start(d, cmd))
=============================================================================

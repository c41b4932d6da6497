------------------------------ MODULE Promises ------------------------------
(* The promises of the README as invariants of the protocol, and a record of the dangerous states that TLC reached.   *)
EXTENDS Tidegate, TLC

AreAllPublished == \A t \in Names : NewestEpoch(t) = TheHead.epoch
Kept == RowsIn(tables["results"].files) \cup RowsIn(tables["late"].files) \cup OpenOf(TheHead)

(* "Nothing disappears silently": each row that the head counts as read is a result, late, open or forgotten.         *)
NoRowIsLost == IsSnapshot(TheHead) /\ AreAllPublished =>
    RowsRead(TheHead.position, TheHead.frontier) \subseteq Kept \cup erased

(* "Exactly once": no row is in two places. *)
NoRowIsDoubled ==
    LET results == RowsIn(tables["results"].files)
        late == RowsIn(tables["late"].files)
        open == IF AreAllPublished THEN OpenOf(TheHead) ELSE {}
    IN  /\ \A t \in {"results", "late"} : \A f, g \in tables[t].files : f # g /\ f.of = g.of => f.rows \cap g.rows = {}
        \* Tables are published one after the other, so a reopened row is briefly in both.
        /\ NewestEpoch("results") = NewestEpoch("late") => results \cap late = {}
        /\ open \cap (results \cup late) = {}

(* "Events in", per epoch: table epochs has one row for each. *)
NoEpochIsDoubled == \A f, g \in tables["epochs"].files : f.epoch = g.epoch => f = g

(* "One semantics": results, late rows and state are a function of the position, regardless of kills and of where     *)
(* epochs were cut. A late row that was reopened is a result, and table late marks it.                                *)
Marked == IF "reopen" \notin Commands THEN {}
          ELSE UNION {f.rows : f \in UNION {{g \in CommittedAs(e).files["late"] : g.of = "marked"} : e \in TheHead.line}}
ResultsFollowFromThePosition ==
    (IsSnapshot(TheHead) /\ AreAllPublished /\ "backfill" \notin Commands) =>
        LET late == LateAt(TheHead.position)
            reopened == late \cap Marked
        IN  /\ RowsIn(tables["results"].files) \cup erased = FiredAt(TheHead.position) \cup reopened \cup erased
            /\ RowsIn(tables["late"].files) \cup erased = (late \ reopened) \cup erased
            /\ TheHead.open \cup erased = OpenAt(TheHead.position) \cup erased

WatermarkFollowsFromThePosition ==
    (IsSnapshot(TheHead) /\ "backfill" \notin Commands) => TheHead.watermark = WatermarkAt(TheHead.position)

(* "Exactly once", for readers: a table that has an epoch lists what the manifests of the epoch's lineage list.       *)
Belongs(m, t) == UNION {CommittedAs(e).files[t] : e \in m.line}
PublishedIsTheManifest ==
    \A t \in {"results", "late"} : NewestEpoch(t) > 0 =>
        LET m == CommittedAs(NewestEpoch(t))
        IN  IsSnapshot(m) => RowsIn(tables[t].files) \cup erased = RowsIn(Belongs(m, t)) \cup erased

(* "Nothing had happened": only what was committed to state is published, so a fenced driver publishes nothing. *)
FencedDriversPublishNothing ==
    \A t \in {"results", "late"} : \A f \in tables[t].files :
        \E v \in 1..Len(state) : \E g \in state[v].m.files[t] : g.epoch = f.epoch /\ g.id = f.id

(* "Restore any retained one": state and all tables are at the same cut, even if drivers of the old lineage continue. *)
RestoreIsOneCut ==
    LET line == TheHead.line IN
    (/\ IsSnapshot(TheHead) /\ TheHead.timeline > 1
     /\ state[Len(state)].kind # "set back"  \* then readers still see the newer epoch, and each command is refused
     /\ \A t \in Names : NewestEpoch(t) >= TheHead.epoch) =>
        \A t \in Names : \A f \in tables[t].files : f.epoch \in line

(* "The snapshot is a Delta version": files of retained snapshots, of tables and of an unpublished epoch exist.       *)
NoNeededFileIsRemoved ==
    /\ \A t \in Names : tables[t].files \subseteq folder
    /\ \A v \in retained : StateFiles(HeadAt(v)) \subseteq folder
    /\ \A s \in saved : s.files \subseteq folder
    /\ \A t \in {"results", "late"} :
         IsSnapshot(TheHead) /\ NewestEpoch(t) < TheHead.epoch => TheHead.files[t] \cup TheHead.back[t] \subseteq folder

(* "The newest snapshot": a stream continues from it, and no table is ever ahead of it unless another engine caused   *)
(* that.                                                                                                              *)
NoTableIsAhead == "set back" \notin Others => \A t \in Names : NewestEpoch(t) <= TheHead.epoch

(* Once `forget` has reported success, the key is in no snapshot and no table, and the files that held it no longer   *)
(* exist.                                                                                                             *)
ForgottenKeysAreInNoFile ==
    LET files == UNION {tables[t].files : t \in Names} \cup UNION {StateFiles(HeadAt(v)) : v \in retained}
    IN  \A f \in files \cup (forgotten.listed \cap folder) \cup CopiesIn(folder) : f.rows \cap forgotten.rows = {}

(* After `prune` has removed the late rows of an epoch, no restore brings them, or older ones, back.                  *)
PrunedRowsStayAway ==
    \A m \in Prunes : NewestEpoch("late") >= m.epoch => \A f \in tables["late"].files : f.epoch > PrunedUpTo(m)

(* A rerun publishes what was committed, and ends. This is a liveness property, checked with FairSpec.                *)
EverythingIsPublished ==
    <>[]((\A d \in Drivers : driver[d].pc = "idle") /\ (IsSnapshot(TheHead) => AreAllPublished))

(* ---- Dangerous states ---- *)

(* What an action did is not part of a state: states that differ only in it are the same. TLC still checks each step. *)
View == <<source, state, tables, folder, retained, lease, driver, starts, tries, note, forgotten, erased, saved>>

(* Drivers differ only by name. *)
Exchanged == Permutations(Drivers)

ASSUME TLCSet(1, {})

Note == IF did' = "" \/ did' \in TLCGet(1) THEN TRUE
        ELSE TLCSet(1, TLCGet(1) \cup {did'}) /\ PrintT(<<"reached", did'>>)
=============================================================================

------------------------------- MODULE Follows -------------------------------
(* Does a run of the real code follow the protocol? A trace has a line for each observed step: driver, step, epoch    *)
(* and table. Between two lines, the model may take steps that write no line. A trace is accepted if the model can    *)
(* take all of its steps in order.                                                                                    *)
EXTENDS Promises

CONSTANT Traces

VARIABLES which, line

Lines == Traces[which]
The == Lines[line]

(* An epoch that only advances the clock reads nothing, and neither does one that reopens rows: no row of a trace is  *)
(* late.                                                                                                              *)
PlanEmpty(d) ==
    /\ Ready(d, IF The.of = "clock" THEN "stream" ELSE The.of)
    /\ LET base == HeadAt(driver[d].at)
           IsLate(row) == FALSE
       IN  /\ IsSnapshot(base)
           /\ Planned(d, Reading(base, The.of, {}, base.watermark, base.pending, base.position, 0, IsLate))
    /\ did' = ""
    /\ UNCHANGED <<source, state, tables, folder, retained, lease, starts, note, forgotten, erased, saved>>

EpochAt(version) == HeadAt(version).epoch
IsOfTheTable(d) == driver[d].m.epoch = The.epoch /\ Published[driver[d].t] = The.of

(* Before its cleanup, `forget` recovers again, and finds everything published. *)
RecoversAgain(d) == driver[d].pc = "listing" /\ EpochAt(Len(state)) = The.epoch /\ UNCHANGED vars

Seen(d) ==
    CASE The.step = "started"   -> Start(d, The.command)
      [] The.step = "recovered" -> \/ Recover(d) /\ driver'[d].pc # "idle" /\ EpochAt(driver'[d].at) = The.epoch
                                   \/ RecoversAgain(d)
      [] The.step = "planned"   -> /\ IF The.of \in {"clock", "reopen"} THEN PlanEmpty(d)
                                      ELSE PlanStream(d) \/ PlanHandOver(d) \/ PlanInterval(d) \/ PlanChange(d)
                                   /\ driver'[d].m.epoch = The.epoch
      [] The.step = "operated"  -> Operate(d) /\ driver[d].m.epoch = The.epoch
      [] The.step = "committed" -> /\ Commit(d) \/ LookWhoseEntryItIs(d)
                                   /\ driver'[d].pc = "publishing" /\ driver'[d].m.epoch = The.epoch
      [] The.step = "refused"   -> LookWhoseEntryItIs(d) /\ driver'[d].pc = "idle"
      [] The.step = "published" -> PutTable(d) /\ IsOfTheTable(d) /\ tables' # tables
      [] The.step = "has"       -> (OpenTable(d) /\ IsOfTheTable(d) /\ driver'[d].opened = -1) \/ RecoversAgain(d)
      \* The code does not write to a table for which an epoch has nothing; the model counts the epoch there anyway.
      [] The.step = "passed over" -> \/ (PutTable(d) \/ (OpenTable(d) /\ driver'[d].opened = -1)) /\ IsOfTheTable(d)
                                     \/ RecoversAgain(d)
      [] The.step = "fenced"    -> Fence(d) /\ driver'[d].pc = "fenced"
      [] The.step = "ended"     -> \/ driver[d].pc = "idle" /\ UNCHANGED vars
                                   \/ EndCleanly(d) \/ LeaseIsLost(d) \/ Crash(d)
      [] OTHER -> FALSE

Unseen(d) ==
    \/ The.step = "recovered" /\ LookAgain(d)
    \/ driver[d].cmd = "restore" /\ Recover(d)  \* a restore reads the tables in its own way
    \/ OpenTable(d) /\ driver'[d].opened >= 0
    \/ PutTable(d) /\ UNCHANGED tables
    \/ CheckFiles(d) /\ driver'[d].pc = "checked"
    \/ The.step = "refused" /\ Commit(d) /\ driver'[d].pc = "asking"
    \/ driver[d].pc = "planned" /\ driver[d].m.kind \in {"restore", "reset", "forget"} /\ Operate(d)
    \/ PlanRestore(d) \/ PlanReset(d) \/ PlanForget(d) \/ Finish(d) \/ List(d) \/ Delete(d)

FollowInit == Init /\ which \in DOMAIN Traces /\ line = 1

FollowNext ==
    /\ line <= Len(Lines) /\ which' = which
    /\ \/ Seen(The.driver) /\ line' = line + 1
       \/ Unseen(The.driver) /\ line' = line
       \/ The.step = "started" /\ LeaseRunsOut /\ line' = line
       \/ The.step = "planned" /\ SourceCommit /\ line' = line

FollowSpec == FollowInit /\ [][FollowNext]_<<vars, which, line>>

FollowView == <<View, which, line>>

ASSUME \A number \in DOMAIN Traces : TLCSet(10 + number, 0)

(* Number of lines of each trace that were taken. *)
Tell == IF line' - 1 > TLCGet(10 + which) THEN TLCSet(10 + which, line' - 1) /\ PrintT(<<"followed", which, line' - 1>>)
        ELSE TRUE
=============================================================================

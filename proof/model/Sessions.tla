------------------------------ MODULE Sessions ------------------------------
(***************************************************************************)
(* Leases of worker processes: src/leasehold/domain/sessions.py.  When a   *)
(* session is lost or ends all its leases end at once, however long they   *)
(* are.  The holder of a lease of no session is nobody's worker: 0.        *)
(***************************************************************************)
EXTENDS Leases

CONSTANTS
  Workers,   \* how many sessions there can be: they are called 1 to Workers
  Silence    \* ticks without a heartbeat after which a session is lost

VARIABLES
  session,   \* by session: its state, and the ticks that are left until it is lost
  holder     \* by message: the session of its current or last lease, 0 for none

sessionVars == <<core, session, holder, log>>
SessionView == <<core, session, holder>>
Sessions == 1..Workers

InitSessions ==
  /\ Init
  /\ session = [s \in Sessions |-> [state |-> "absent", left |-> 0]]
  /\ holder = [m \in Messages |-> 0]

OfSession(type, s) == [type |-> type, m |-> 0, session |-> s]

Start(s) ==
  /\ session[s].state = "absent" /\ \A r \in 1..(s - 1) : session[r].state # "absent"
  /\ session' = [session EXCEPT ![s] = [state |-> "live", left |-> Silence]]
  /\ log' = <<OfSession("session-started", s)>>
  /\ UNCHANGED <<core, holder>>

\* It also revives a session that was silent for too long, if the server has not yet looked.
Heartbeat(s) ==
  /\ session[s].state = "live" /\ session[s].left < Silence
  /\ session' = [session EXCEPT ![s].left = Silence]
  /\ log' = <<>> /\ UNCHANGED <<core, holder>>

\* To ask for messages is a heartbeat too.
ReceiveFor(m, s) ==
  /\ session[s].state = "live" \/ (Bug = "session-stale" /\ session[s].state = "lost")
  /\ Receive(m)
  /\ session' = [session EXCEPT ![s].left = Silence]
  /\ holder' = [holder EXCEPT ![m] = s]

ReceiveForNobody(m) == Receive(m) /\ holder' = [holder EXCEPT ![m] = 0] /\ UNCHANGED session

\* On a lease of the session now: one that lapsed is not, nor is a message that has expired.
Holds(m, s) ==
  LET row == msg[m]
  IN /\ row.place = "queue" /\ row.phase = "leased" /\ row.hidden > 0 /\ row.life > 0
     /\ holder[m] = s

\* After a lost session the attempt counts as a lapse, after a good-bye as an interruption, which
\* the budget of deliveries does not count.
Ended(row, state) ==
  LET closed == IF state = "ended" THEN [row EXCEPT !.spared = @ + 1] ELSE row
  IN IF Exhausted(closed) THEN Poisoned(closed) ELSE Released(closed, 0)

Order(ms) == CHOOSE q \in [1..Cardinality(ms) -> ms] :
               \A i, j \in 1..Cardinality(ms) : i < j => q[i] < q[j]

EndLeases(s, state, first) ==
  LET held == {m \in Messages : Holds(m, s)}
      ending == IF Bug = "session-kept" THEN {} ELSE held
      rows == [m \in Messages |-> IF m \in ending THEN Ended(msg[m], state) ELSE msg[m]]
      events == [i \in 1..Cardinality(ending) |->
                   LET m == Order(ending)[i]
                   IN IF rows[m].place = "poison"
                        THEN Event("poisoned", m, rows[m], "max_deliveries")
                        ELSE Event("lease-ended", m, rows[m], "session " \o state)]
  IN /\ \A m \in ending : msg[m].fence < MaxFence
     /\ Write(rows, first \o events)
     /\ session' = [session EXCEPT ![s] = [state |-> state, left |-> 0]]
     /\ live' = [m \in Messages |-> IF m \in ending THEN {} ELSE live[m]]
     /\ UNCHANGED <<due, done, holder>>

Over(s, state) ==
  session[s].state = "live" /\ EndLeases(s, state, <<OfSession("session-" \o state, s)>>)
Lose(s) == session[s].left = 0 /\ Over(s, "lost")
End(s) == Over(s, "ended")

\* A lease that had lapsed when its session ended was not ended with it. Its receipt may have
\* renewed it since, if the rule is until-retaken: the next look of the server ends it.
EndLate(s) == /\ session[s].state \in {"lost", "ended"} /\ \E m \in Messages : Holds(m, s)
              /\ EndLeases(s, session[s].state, <<>>)

\* A session lives up to the end of its last tick; it is lost in the one after that.
SessionTick ==
  LET after == [s \in Sessions |-> [session[s] EXCEPT !.left = Less(@)]]
  IN /\ Ticked # msg \/ after # session
     /\ WriteUncounted(Ticked, ATick) /\ UNCHANGED <<counted, done, holder>>
     /\ live' = [m \in Messages |-> LessLive(live[m])]
     /\ due' = [m \in Messages |-> Less(due[m])]
     /\ session' = after

NextSessions ==
  \/ SessionTick
  \/ \E s \in Sessions : Start(s) \/ Heartbeat(s) \/ Lose(s) \/ End(s) \/ EndLate(s)
  \/ \E m \in Messages :
       \/ ReceiveForNobody(m)
       \/ \E s \in Sessions : ReceiveFor(m, s)
       \/ /\ \/ \E life \in Lives : Put(m, 0, life)
             \/ PoisonAtReceive(m)
             \/ Act(m)
             \/ Expire(m)
          /\ UNCHANGED <<session, holder>>
       \/ Redrive(m) /\ holder' = [holder EXCEPT ![m] = 0] /\ UNCHANGED session
SpecSessions == InitSessions /\ [][NextSessions]_sessionVars

-----------------------------------------------------------------------------
(* Laws. *)

\* In the step in which a session ends, all its leases end: others can have the messages at once.
SessionEndsLeases ==
  [][\A s \in Sessions : session[s].state = "live" /\ session'[s].state \in {"lost", "ended"} =>
       \A m \in Messages : ~Holds(m, s)']_sessionVars

\* A session that is over is given nothing, and what is over stays over.
SessionIsOver ==
  [][\A s \in Sessions : session[s].state \in {"lost", "ended"} =>
       /\ session'[s].state = session[s].state
       /\ \A m \in Messages : holder'[m] = s => holder[m] = s /\ msg'[m].count <= msg[m].count
    ]_sessionVars
=============================================================================

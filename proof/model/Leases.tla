------------------------------- MODULE Leases -------------------------------
(***************************************************************************)
(* Messages, leases and receipts of one queue and its poison queue: what   *)
(* src/leasehold/domain/visibility.py and failures.py say, one step for    *)
(* each command.  Claims, Sessions and Groups extend this module.          *)
(*                                                                         *)
(* Time.  Moments are not kept, only how many ticks are left until them,   *)
(* so Tick counts down, and the states are finite without an end of time.  *)
(*                                                                         *)
(* Receipts.  A receipt is the number of a fence.  Whoever acts may show   *)
(* the newest one, if anybody was given it, and any older number, given    *)
(* out or not: so every late, confused or malicious holder is among them.  *)
(*                                                                         *)
(* Laws.  A law speaks of one step: the state before it, the events that   *)
(* it writes to the log, and the state after it.  Laws do not share a      *)
(* formula with the steps that they judge: they lean on the variables      *)
(* live, due and done, which say what clients were told.                   *)
(*                                                                         *)
(* Bug plants a fault; "none" is the queue as it is.                       *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
  Count,           \* messages: they are called 1 to Count, in the order of their puts
  MaxFence,        \* no step raises a fence above this
  Lease,           \* ticks: the length of leases
  Delay,           \* ticks: the length of delays
  Lives,           \* ticks: times to live to choose from
  Never,           \* the time to live of what does not expire: above all others
  MaxDeliveries,   \* the budget of deliveries; 0 for none
  Rule,            \* what a lapsed receipt may do: "until-retaken" or "strict"
  Bug

VARIABLES
  msg,      \* by message: its row in the store
  counted,  \* how many messages are in the queue, as the store counts along
  live,     \* by message: the leases that holders rely on, each with the ticks that are left
  due,      \* by message: ticks before which it was promised that nobody gets it (leases apart)
  done,     \* messages of which the log says that they are gone
  log       \* the events of the last step; not part of the state, see View

core == <<msg, counted, live, due, done>>
View == core
vars == <<core, log>>

Messages == 1..Count
Finals == {"completed", "settled", "expired", "discarded"}
Places == {"absent", "queue", "poison", "staged", "gone", "lost"}  \* "lost" only by bugs

Row == [place : Places,
        phase : {"waiting", "delayed", "leased", "deferred"},
        hidden : Nat,     \* ticks until it is visible
        life : Nat,       \* ticks until it expires
        ttl : Nat,        \* what life was when it was put, for its return from the poison queue
        count : Nat,      \* dequeue count
        spared : Nat,     \* deliveries that do not count against the budget: interruptions
        fence : Nat,
        known : BOOLEAN]  \* whether anybody was given a receipt with this fence

Absent == [place |-> "absent", phase |-> "waiting", hidden |-> 0, life |-> Never, ttl |-> Never,
           count |-> 0, spared |-> 0, fence |-> 0, known |-> FALSE]

-----------------------------------------------------------------------------
(* What steps are made of. *)

\* An event: the row is as it is after it, or was if the message is gone. by is the fence of the
\* receipt that was shown; of events of claims and others it is something else that was shown.
EventBy(type, m, row, why, by) == [type |-> type, m |-> m, row |-> row, why |-> why, by |-> by]
Event(type, m, row, why) == EventBy(type, m, row, why, row.fence)

In(rows) == {m \in Messages : rows[m].place = "queue"}

\* Put these rows in place of those that there are. The store adds up what comes and goes.
WriteUncounted(rows, events) == msg' = rows /\ log' = events
Write(rows, events) ==
  /\ WriteUncounted(rows, events)
  /\ counted' = (counted + Cardinality(In(rows) \ In(msg))) - Cardinality(In(msg) \ In(rows))
Set(m, row) == [msg EXCEPT ![m] = row]

Less(ticks) == IF ticks = 0 \/ ticks = Never THEN ticks ELSE ticks - 1
LessLive(leases) == {l \in {[l EXCEPT !.left = Less(@)] : l \in leases} : l.left > 0}
Without(m, f) == {l \in live[m] : l.fence # f}

Gone(row) == [row EXCEPT !.place = "gone"]
Poisoned(row) == [row EXCEPT !.place = "poison", !.phase = "waiting", !.hidden = 0,
                             !.life = Never, !.fence = @ + 1, !.known = FALSE]
Exhausted(row) == MaxDeliveries > 0 /\
  row.count - row.spared >= MaxDeliveries + (IF Bug = "poison-late" THEN 1 ELSE 0)
HasLapsed(row) == row.phase = "leased" /\
  (row.hidden = 0 \/ (Bug = "early-lapse" /\ row.hidden = 1))
Lapse(m, row) == IF HasLapsed(row) THEN <<Event("lapsed", m, row, "")>> ELSE <<>>

\* Whether a receive may take it now.
Receivable(row) ==
  /\ \/ row.place = "queue"
     \/ Bug = "staged-visible" /\ row.place = "staged"
  /\ \/ row.hidden = 0
     \/ Bug = "two-leases" /\ row.phase = "leased"
     \/ Bug = "early-delayed" /\ row.phase \in {"delayed", "deferred"}
     \/ HasLapsed(row)
  /\ row.life > 0 \/ Bug = "expired-delivered"

Leased(row) == [row EXCEPT !.place = "queue", !.phase = "leased", !.hidden = Lease,
                           !.count = @ + 1, !.known = TRUE,
                           !.fence = @ + (IF Bug = "fence-stays" THEN 0 ELSE 1)]

\* Whether a receipt with fence f may act.
MayAct(row, f, stale) ==
  /\ row.place = "queue" /\ row.life > 0
  /\ (f = row.fence /\ row.known) \/ (stale /\ f < row.fence)
  /\ Rule = "strict" => row.hidden > 0

-----------------------------------------------------------------------------
(* The steps. *)

Init ==
  /\ msg = [m \in Messages |-> Absent]
  /\ counted = 0 /\ done = {} /\ log = <<>>
  /\ live = [m \in Messages |-> {}] /\ due = [m \in Messages |-> 0]

IsNext(m) == msg[m].place = "absent" /\ \A n \in 1..(m - 1) : msg[n].place # "absent"
Fresh(delay, life) ==
  [Absent EXCEPT !.place = "queue", !.hidden = delay, !.life = life, !.ttl = life,
                 !.phase = IF delay = 0 THEN "waiting" ELSE "delayed", !.known = TRUE]

Put(m, delay, life) ==
  /\ IsNext(m) /\ delay < life
  /\ LET row == Fresh(delay, life) IN Write(Set(m, row), <<Event("put", m, row, "")>>)
  /\ due' = [due EXCEPT ![m] = delay]
  /\ UNCHANGED <<live, done>>

\* A message on whose budget nothing is left goes to the poison queue in place of the receiver.
PoisonAtReceive(m) ==
  LET row == Poisoned(msg[m])
  IN /\ Receivable(msg[m]) /\ Exhausted(msg[m]) /\ msg[m].fence < MaxFence
     /\ Write(Set(m, row), Lapse(m, msg[m]) \o <<Event("poisoned", m, row, "max_deliveries")>>)
     /\ UNCHANGED <<live, due, done>>

Receive(m) ==
  LET row == Leased(msg[m])
      isLost == Bug = "lost-on-lapse" /\ HasLapsed(msg[m])
  IN /\ Receivable(msg[m]) /\ ~Exhausted(msg[m]) /\ msg[m].fence < MaxFence
     /\ IF isLost
          THEN /\ Write(Set(m, [msg[m] EXCEPT !.place = "lost"]), Lapse(m, msg[m]))
               /\ UNCHANGED <<live, due>>
          ELSE /\ Write(Set(m, row), Lapse(m, msg[m]) \o <<Event("received", m, row, "")>>)
               /\ live' = [live EXCEPT ![m] = @ \cup {[fence |-> row.fence, left |-> Lease]}]
               /\ due' = [due EXCEPT ![m] = 0]
     /\ UNCHANGED done

\* Azure's update and MNS's change of visibility: with 0 ticks it gives the message back. Before
\* the first lease it is the sender who moves the end of the delay.
Renewed(row, ticks) ==
  [row EXCEPT !.hidden = ticks, !.known = TRUE,
              !.fence = @ + (IF Bug = "receipt-kept" THEN 0 ELSE 1),
              !.phase = CASE row.phase \in {"waiting", "delayed"} ->
                               IF ticks = 0 THEN "waiting" ELSE "delayed"
                          [] OTHER -> IF ticks = 0 THEN "deferred" ELSE "leased"]

Renew(m, f, ticks) ==
  LET old == msg[m]
      row == Renewed(old, ticks)
      isReturn == old.phase = "leased" /\ ticks = 0
  IN /\ MayAct(old, f, Bug = "stale-renew") /\ ticks <= old.life /\ old.fence < MaxFence
     /\ Write(Set(m, row), <<EventBy(IF isReturn THEN "released" ELSE "renewed", m, row,
                                     IF isReturn THEN "returned" ELSE "", f)>>)
     /\ live' = [live EXCEPT ![m] = Without(m, f) \cup
          (IF row.phase = "leased" THEN {[fence |-> row.fence, left |-> ticks]} ELSE {})]
     /\ due' = [due EXCEPT ![m] = IF row.phase = "delayed" THEN ticks ELSE 0]
     /\ UNCHANGED done

Complete(m, f) ==
  /\ MayAct(msg[m], f, Bug = "stale-complete")
  /\ LET rows == IF Bug = "complete-kept" THEN msg ELSE Set(m, Gone(msg[m]))
         events == <<EventBy("completed", m, msg[m], "", f)>>
     IN IF Bug = "count-off"
          THEN WriteUncounted(rows, events) /\ UNCHANGED counted
          ELSE Write(rows, events)
  /\ live' = [live EXCEPT ![m] = Without(m, f)]
  /\ done' = done \cup {m}
  /\ UNCHANGED due

\* Refused, and written down for who wants to know of work that came too late.
CompleteLate(m, f) ==
  LET row == msg[m]
  IN /\ row.place = "queue" /\ row.life > 0
     /\ f < row.fence \/ (f = row.fence /\ row.known)
     /\ ~MayAct(row, f, FALSE)
     /\ Write(msg, <<EventBy("refused", m, row,
                             IF f = row.fence THEN "lapsed" ELSE "superseded", f)>>)
     /\ UNCHANGED <<live, due, done>>

Released(row, delay) == [row EXCEPT !.phase = "deferred", !.hidden = delay, !.fence = @ + 1,
                                    !.known = FALSE]

\* Given back, or moved to the poison queue: because the budget is used up, or buried by will.
Release(m, f, delay, why) ==
  LET old == msg[m]
      isPoisoned == why = "buried" \/ Exhausted(old)
      row == IF isPoisoned THEN Poisoned(old) ELSE Released(old, delay)
      kept == IF Bug = "lost-on-release" THEN [row EXCEPT !.place = "lost"] ELSE row
      reason == IF why = "buried" THEN why ELSE "max_deliveries"
  IN /\ MayAct(old, f, Bug = "stale-complete") /\ old.fence < MaxFence
     /\ delay < old.life
     /\ Write(Set(m, kept), <<IF isPoisoned THEN EventBy("poisoned", m, row, reason, f)
                                            ELSE EventBy("released", m, row, why, f)>>)
     /\ live' = [live EXCEPT ![m] = Without(m, f)]
     /\ due' = [due EXCEPT ![m] = IF isPoisoned THEN 0 ELSE delay]
     /\ UNCHANGED done

\* Brought back from the poison queue for a fresh start.
Redrive(m) ==
  LET row == [msg[m] EXCEPT !.place = "queue", !.count = 0, !.spared = 0, !.fence = @ + 1,
                            !.life = msg[m].ttl]
  IN /\ msg[m].place = "poison" /\ msg[m].fence < MaxFence
     /\ Write(Set(m, row), <<Event("redriven", m, row, "")>>)
     /\ UNCHANGED <<live, due, done>>

\* The sweep. From its expiry on a message is hidden; when the sweep comes makes no difference.
Expire(m) ==
  /\ msg[m].place = "queue" /\ msg[m].life = 0
  /\ Write(Set(m, Gone(msg[m])), <<Event("expired", m, msg[m], "")>>)
  /\ done' = done \cup {m} /\ live' = [live EXCEPT ![m] = {}]
  /\ UNCHANGED due

TickRow(row) == [row EXCEPT !.hidden = Less(@),
                            !.life = IF row.place = "queue" THEN Less(@) ELSE @]
Ticked == [m \in Messages |-> TickRow(msg[m])]
ATick == <<[type |-> "tick", m |-> 0]>>  \* not an event; for who reads a behaviour
Tick ==
  /\ Ticked # msg
  /\ WriteUncounted(Ticked, ATick) /\ UNCHANGED <<counted, done>>
  /\ live' = [m \in Messages |-> LessLive(live[m])]
  /\ due' = [m \in Messages |-> Less(due[m])]

\* What has a receipt. Reasons other than these end the same way.
Act(m) ==
  \E f \in 0..msg[m].fence :
    \/ \E ticks \in {0, Lease} : Renew(m, f, ticks)
    \/ Complete(m, f)
    \/ CompleteLate(m, f)
    \/ \E delay \in {0, Delay} : Release(m, f, delay, "failed")
    \/ Release(m, f, 0, "buried")

Step(m) ==
  \/ \E delay \in {0, Delay}, life \in Lives : Put(m, delay, life)
  \/ Receive(m)
  \/ PoisonAtReceive(m)
  \/ Act(m)
  \/ Redrive(m)
  \/ Expire(m)

Next == Tick \/ \E m \in Messages : Step(m)
Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* The laws. Each is said of every step; see docs/explanation/proof.md. *)

Events == {log'[i] : i \in 1..Len(log')}
Of(types) == {e \in Events : e.type \in types}

TypeOK ==
  /\ msg \in [Messages -> Row]
  /\ counted \in Nat /\ done \subseteq Messages
  /\ \A m \in Messages : due[m] \in Nat /\ \A l \in live[m] : l.fence \in Nat /\ l.left \in Nat

\* Nobody is told of a lapse while the lease goes on, and what was sent, staged or given back with
\* a delay is not handed out before that is over.
Early ==
  \/ \E e \in Of({"lapsed"}) : \E l \in live[e.m] : l.fence = msg[e.m].fence
  \/ \E e \in Of({"received", "claimed"}) : due[e.m] > 0 \/ msg[e.m].place = "staged"
NothingEarly == [][~Early]_vars

\* Of one message there is one lease at most that its holder may rely on.
NoTwoLiveLeases == [][\A m \in Messages : Cardinality(live'[m]) <= 1]_vars

\* Only the newest receipt acts: on a message that is there and, under the strict rule, only while
\* the lease goes on. What is refused changes nothing.
Stale ==
  \/ \E e \in Of({"completed", "renewed"}) \cup {e \in Events : e.type \in {"released", "poisoned"}
                                                   /\ e.why \in {"failed", "returned", "buried"}} :
       LET row == msg[e.m]
       IN \/ row.place # "queue" \/ e.by # row.fence \/ ~row.known
          \/ Rule = "strict" /\ row.hidden = 0
  \/ Of({"refused"}) # {} /\ msg' # msg
NoStaleAction == [][~Stale]_vars

\* Fences rise: with every receipt that is given out, and whenever the receipts of before die.
\* They never fall.
FenceOrder ==
  [][/\ \A m \in Messages : msg'[m].fence >= msg[m].fence
     /\ \A e \in Of({"received", "renewed", "claimed", "released", "poisoned", "redriven",
                     "lease-ended"}) : e.row.fence > msg[e.m].fence]_vars

\* What is gone is gone: a message comes to one end, once, and nothing happens to it after that.
SettledOnce ==
  [][/\ \A e \in Events : e.type # "refused" => e.m \notin done
     /\ \A m \in Messages : Cardinality({i \in 1..Len(log') : log'[i].m = m
                                                        /\ log'[i].type \in Finals}) <= 1]_vars

\* What was put is there until the log says how it ended.
NothingLost ==
  [][\A m \in Messages :
       msg[m].place # "absent" /\ m \notin done' => msg'[m].place \in {"queue", "poison", "staged"}
    ]_vars

\* The count of the queue is that of its messages, and a dequeue count that of the deliveries.
ExactCounts ==
  [][/\ counted' = Cardinality(In(msg'))
     /\ \A m \in Messages :
          LET got == Cardinality({e \in Of({"received", "claimed"}) : e.m = m})
          IN IF \E e \in Of({"redriven"}) : e.m = m
               THEN msg'[m].count = 0
               ELSE msg'[m].count = msg[m].count + got]_vars

\* Nobody gets, or acts on, a message whose time to live is over.
NothingExpired ==
  [][\A e \in Of({"received", "claimed", "completed", "renewed"}) : msg[e.m].life > 0]_vars

\* No delivery is beyond the budget.
PoisonInTime ==
  [][\A e \in Of({"received", "claimed"}) :
       MaxDeliveries > 0 => e.row.count - e.row.spared <= MaxDeliveries]_vars
=============================================================================

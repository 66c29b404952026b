------------------------------- MODULE Groups -------------------------------
(***************************************************************************)
(* Message groups: src/leasehold/domain/groups.py and how stores use it.   *)
(* In order ("fifo") a group gives its messages as they became visible for *)
(* the first time; and no more of them than Limit are handed out while     *)
(* they are on leases.  Whose turn it is among groups is left open here:   *)
(* any group that has something to give may be next.                       *)
(***************************************************************************)
EXTENDS Leases

CONSTANTS
  GroupCount,  \* groups are numbered 1 to GroupCount; 0 is for messages of none
  Fifo,        \* whether groups are in order
  Limit,       \* messages of one group that may be on leases at once
  Halts        \* whether a group stands still after one of its messages went to the poison queue

VARIABLES
  group,   \* by message: its group
  line,    \* the messages in the order in which they became visible for the first time
  halted   \* groups that stand still

groupVars == <<core, group, line, halted, log>>
GroupView == <<core, group, line, halted>>
Groups == 1..GroupCount

InitGroups ==
  /\ Init
  /\ group = [m \in Messages |-> 0] /\ line = <<>> /\ halted = {}

OfGroup(type, g, m) == [type |-> type, m |-> 0, group |-> g, target |-> m]

-----------------------------------------------------------------------------
(* What a group can give. *)

IsThere(row) == row.place = "queue" /\ row.life > 0
InFlight(rows, g) == {m \in Messages : /\ group[m] = g /\ IsThere(rows[m])
                                       /\ rows[m].phase = "leased" /\ rows[m].hidden > 0}
\* Those that can be received, in their order.
Ready(g) == SelectSeq(line, LAMBDA m : group[m] = g /\ Receivable(msg[m]))
\* One that was received before and is not visible: the group waits for it.
IsAway(m) == IsThere(msg[m]) /\ msg[m].hidden > 0 /\ msg[m].count > 0
InOrder == Fifo /\ Bug # "group-overtaken"
Gives(g) ==
  /\ g \notin halted \/ Bug = "halt-ignored"
  /\ InOrder => \A m \in Messages : group[m] = g => ~IsAway(m)
Room(g) == (Limit + (IF Bug = "cap-exceeded" THEN 1 ELSE 0)) - Cardinality(InFlight(msg, g))

\* The first so many that are ready go to one receiver, on one lease each. Where there is no
\* order, any of them may be first: a run is one message then.
Runs(g) ==
  LET q == Ready(g)
  IN IF InOrder THEN {SubSeq(q, 1, n) : n \in 1..Len(q)} ELSE {<<q[i]>> : i \in 1..Len(q)}

ReceiveRun(g) ==
  \E run \in Runs(g) :
    LET ms == {run[i] : i \in 1..Len(run)}
        rows == [m \in Messages |-> IF m \in ms THEN Leased(msg[m]) ELSE msg[m]]
        RECURSIVE Upto(_)
        Upto(i) == IF i = 0 THEN <<>>
                   ELSE Upto(i - 1) \o Lapse(run[i], msg[run[i]])
                                    \o <<Event("received", run[i], rows[run[i]], "")>>
    IN /\ Gives(g) /\ Len(run) <= Room(g)
       /\ \A m \in ms : ~Exhausted(msg[m]) /\ msg[m].fence < MaxFence
       /\ Write(rows, Upto(Len(run)))
       /\ live' = [m \in Messages |-> IF m \in ms
                     THEN live[m] \cup {[fence |-> rows[m].fence, left |-> Lease]} ELSE live[m]]
       /\ due' = [m \in Messages |-> IF m \in ms THEN 0 ELSE due[m]]
       /\ UNCHANGED <<done, group, line, halted>>

\* The first one has no budget left. It makes room for the next, unless that halts its group.
PoisonFirst(g) ==
  /\ Ready(g) # <<>> /\ Gives(g) /\ Room(g) > 0
  /\ LET m == Head(Ready(g))
         row == Poisoned(msg[m])
         halt == IF Halts THEN <<OfGroup("group-halted", g, m)>> ELSE <<>>
     IN /\ Exhausted(msg[m]) /\ msg[m].fence < MaxFence
        /\ Write(Set(m, row),
                 Lapse(m, msg[m]) \o <<Event("poisoned", m, row, "max_deliveries")>> \o halt)
        /\ halted' = IF Halts THEN halted \cup {g} ELSE halted
  /\ UNCHANGED <<live, due, done, group, line>>

-----------------------------------------------------------------------------
(* The other steps. *)

PutIn(m, g, delay, life) ==
  /\ Put(m, delay, life)
  /\ group' = [group EXCEPT ![m] = g]
  /\ line' = IF delay = 0 THEN Append(line, m) ELSE line
  /\ UNCHANGED halted

\* What becomes visible for the first time takes its place.
GroupTick ==
  LET first == {m \in Messages : /\ msg[m].phase = "delayed" /\ msg[m].hidden = 1
                                 /\ msg[m].place = "queue"}
      RECURSIVE Upto(_)
      Upto(m) == IF m = 0 THEN line ELSE IF m \in first THEN Append(Upto(m - 1), m) ELSE Upto(m - 1)
  IN Tick /\ line' = Upto(Count) /\ UNCHANGED <<group, halted>>

\* If it goes to the poison queue for that, its group halts. What a sender does with its receipt
\* before the first delivery moves a message to another place; that is left out here.
ReleaseIn(m, f, delay, why) ==
  LET isHalting == Halts /\ group[m] # 0 /\ group[m] \notin halted
                         /\ (why = "buried" \/ Exhausted(msg[m]))
  IN /\ msg[m].count > 0 /\ Release(m, f, delay, why)
     /\ halted' = IF isHalting THEN halted \cup {group[m]} ELSE halted
     /\ UNCHANGED <<group, line>>

Resume(g) == g \in halted /\ halted' = halted \ {g} /\ log' = <<OfGroup("group-resumed", g, 0)>>
             /\ UNCHANGED <<core, group, line>>

NextGroups ==
  \/ GroupTick
  \/ \E g \in Groups : ReceiveRun(g) \/ PoisonFirst(g) \/ Resume(g)
  \/ \E m \in Messages :
       \/ \E g \in 0..GroupCount, delay \in {0, Delay}, life \in Lives : PutIn(m, g, delay, life)
       \/ \E f \in 0..msg[m].fence, delay \in {0, Delay} : ReleaseIn(m, f, delay, "failed")
       \/ /\ \/ group[m] = 0 /\ (Receive(m) \/ PoisonAtReceive(m))
             \/ \E f \in 0..msg[m].fence :
                  \/ Complete(m, f)
                  \/ /\ msg[m].count > 0
                     \* An ended lease has made room in its group, and is not begun again.
                     /\ \E ticks \in {0, Lease} :
                          /\ ticks > 0 /\ group[m] # 0 /\ msg[m].phase = "leased" => msg[m].hidden > 0
                          /\ Renew(m, f, ticks)
             \/ Redrive(m)
             \/ Expire(m)
          /\ UNCHANGED <<group, line, halted>>
SpecGroups == InitGroups /\ [][NextGroups]_groupVars

-----------------------------------------------------------------------------
(* Laws. *)

Place(m) == CHOOSE i \in 1..Len(line) : line[i] = m
Given == {e.m : e \in Of({"received"})}

\* In order, a message is handed out when all of its group before it have left the queue or expired,
\* or go to the same receiver.
GroupOrder ==
  [][Fifo => \A m \in Given : group[m] # 0 =>
       \A i \in 1..(Place(m) - 1) :
         group[line[i]] = group[m] /\ IsThere(msg[line[i]]) => line[i] \in Given]_groupVars

\* No step takes a group above its limit.
GroupLimit ==
  [][\A g \in 1..GroupCount : Cardinality(InFlight(msg', g)) <= Limit]_groupVars

\* A group that stands still gives nothing.
GroupStandsStill == [][\A m \in Given : group[m] \notin halted]_groupVars
=============================================================================

------------------------------- MODULE Claims -------------------------------
(***************************************************************************)
(* Claims of one stream, and staged sends: src/leasehold/domain/claims.py  *)
(* and transactions.py.  Claim n is settled together with transaction n:   *)
(* what was staged under it is published in the same step.                 *)
(*                                                                         *)
(* Workers receive from the same queue all the while.                      *)
(***************************************************************************)
EXTENDS Leases, TLC

CONSTANTS
  MaxClaims,  \* claims are numbered 1 to MaxClaims
  MaxToken,   \* how often the stream is attached to
  ClaimLease  \* ticks that a claim hides its members

VARIABLES
  claim,    \* by number: its state, its members, the ticks left, how many it has lost
  settled,  \* the last number that is settled
  token,    \* of who attached last
  sent,     \* by message: the transaction that it was staged under, 0 for none
  told,     \* by number: the members that the consumer was told of when it was opened first
  shown     \* the token that the last step was called with, 0 for none; not part of the state

claimVars == <<core, claim, settled, token, sent, told, log, shown>>
ClaimView == <<core, claim, settled, token, sent, told>>
own == <<claim, settled, token, sent, told>>
Numbers == 1..MaxClaims

\* "closed" is one that is not there (any more).
Closed == [state |-> "closed", members |-> {}, left |-> 0, lost |-> 0]
Hiding == {"open", "parked"}

InitClaims ==
  /\ Init
  /\ claim = [n \in Numbers |-> Closed] /\ settled = 0 /\ token = 1
  /\ sent = [m \in Messages |-> 0] /\ told = [n \in Numbers |-> {}] /\ shown = 0

Members(states) == UNION {claim[n].members : n \in {n \in Numbers : claim[n].state \in states}}
Hidden == Members(Hiding)
IsOpen(n) == claim[n].state # "closed"
Highest == CHOOSE n \in 0..MaxClaims :
             /\ n = settled \/ (n > settled /\ IsOpen(n))
             /\ \A k \in Numbers : IsOpen(k) => k <= n

OfClaim(type, n) == [type |-> type, m |-> 0, claim |-> n]
EventIn(type, m, row, n) == EventBy(type, m, row, "", row.fence) @@ [claim |-> n]

\* The members ms in the order of their places, as a sequence.
InOrder(ms) == CHOOSE q \in [1..Cardinality(ms) -> ms] :
                 \A i, j \in 1..Cardinality(ms) : i < j => q[i] < q[j]
\* One event, or several, of each of them.
Each(ms, Make(_)) ==
  LET q == InOrder(ms)
      RECURSIVE Upto(_)
      Upto(i) == IF i = 0 THEN <<>> ELSE Upto(i - 1) \o Make(q[i])
  IN Upto(Cardinality(ms))

-----------------------------------------------------------------------------
(* Who may act. *)

\* Calls show the token that they were given. Only the newest one acts.
Shown(t) == (t = token \/ Bug = "stale-token") /\ shown' = t
Attach ==
  /\ token < MaxToken /\ token' = token + 1 /\ log' = <<>>
  /\ UNCHANGED <<core, claim, settled, sent, told>>

-----------------------------------------------------------------------------
(* Opening, once and again. *)

\* Messages ms become members; a lapse of an earlier lease is noted. Nobody gets receipts.
Claimed(row) == [row EXCEPT !.phase = "leased", !.hidden = ClaimLease, !.count = @ + 1,
                            !.fence = @ + 1, !.known = FALSE]
Take(ms, n) ==
  /\ \A m \in ms : /\ Receivable(msg[m]) /\ ~Exhausted(msg[m]) /\ msg[m].fence < MaxFence
                   /\ m \notin Hidden
  /\ LET rows == [m \in Messages |-> IF m \in ms THEN Claimed(msg[m]) ELSE msg[m]]
         events(m) == Lapse(m, msg[m]) \o <<EventIn("claimed", m, rows[m], n)>>
     IN Write(rows, Each(ms, events))
  /\ due' = [m \in Messages |-> IF m \in ms THEN 0 ELSE due[m]]
  /\ UNCHANGED <<live, done>>

\* Other claims that have lapsed lose what is taken from them, and are broken.
Lose(claims, ms) ==
  [n \in Numbers |->
     LET gone == claims[n].members \cap ms
     IN IF gone = {} THEN claims[n]
        ELSE [claims[n] EXCEPT !.members = @ \ gone, !.lost = @ + Cardinality(gone),
                               !.state = "broken"]]

Open(n, ms) ==
  /\ ~IsOpen(n) /\ n > settled /\ n <= Highest + 1 /\ ms # {}
  /\ Take(ms, n)
  /\ claim' = [Lose(claim, ms) EXCEPT ![n] =
                 [state |-> "open", members |-> ms, left |-> ClaimLease, lost |-> 0]]
  /\ told' = [told EXCEPT ![n] = ms]
  /\ UNCHANGED <<settled, token, sent>>

\* To open it again, or to extend it, is the same for a claim that is whole. One that is broken is
\* opened again only by who accepts the loss.
Hide(rows, ms) == [m \in Messages |-> IF m \in ms THEN [rows[m] EXCEPT !.hidden = ClaimLease]
                                                 ELSE rows[m]]
Again(n, state) ==
  /\ IsOpen(n)
  /\ WriteUncounted(Hide(msg, claim[n].members),
       <<OfClaim(IF claim[n].state \in Hiding THEN "claim-extended" ELSE "claim-reopened", n)>>)
  /\ claim' = [claim EXCEPT ![n].state = state, ![n].left = ClaimLease]
  /\ UNCHANGED <<counted, live, due, done, settled, token, sent, told>>

\* A claim that was opened again has other members: more than it had.
Grown(n, m) ==
  /\ Bug = "claim-changed" /\ claim[n].state = "lapsed"
  /\ Take({m}, n)
  /\ claim' = [claim EXCEPT ![n].state = "open", ![n].left = ClaimLease,
                            ![n].members = @ \cup {m}]
  /\ UNCHANGED <<settled, token, sent, told>>

\* Its time is over. The members are visible; they stay members while nobody takes them.
LapseClaim(n) ==
  /\ claim[n].state \in Hiding /\ claim[n].left = 0
  /\ claim' = [claim EXCEPT ![n].state = "lapsed"]
  /\ log' = <<OfClaim("claim-lapsed", n)>>
  /\ UNCHANGED <<core, settled, token, sent, told>>

\* Its members are visible at once. Of one that had lapsed they stay as they are.
GiveBack(n) ==
  LET ms == claim[n].members
      isHiding == claim[n].state \in Hiding
      rows == [m \in Messages |-> IF m \in ms /\ isHiding THEN Released(msg[m], 0) ELSE msg[m]]
      event(m) == <<EventIn("unclaimed", m, rows[m], n)>>
  IN /\ IsOpen(n)
     /\ isHiding => \A m \in ms : msg[m].fence < MaxFence
     /\ Write(rows, Each(ms, event))
     /\ claim' = [claim EXCEPT ![n] = Closed]
     /\ told' = [told EXCEPT ![n] = {}]
     /\ UNCHANGED <<live, due, done, settled, token, sent>>

-----------------------------------------------------------------------------
(* Settling, and what is published with it. *)

Stage(m, n) ==
  /\ IsNext(m) /\ n > settled
  /\ LET row == [Fresh(0, Never) EXCEPT !.place = "staged", !.known = FALSE]
     IN Write(Set(m, row), <<EventIn("staged", m, row, n)>>)
  /\ sent' = [sent EXCEPT ![m] = n]
  /\ UNCHANGED <<live, due, done, claim, settled, token, told>>

StagedUnder(n) == {m \in Messages : msg[m].place = "staged" /\ sent[m] = n}

Discard(n) ==
  LET ms == StagedUnder(n)
      event(m) == <<EventIn("discarded", m, msg[m], n)>>
  IN /\ ms # {}
     /\ Write([m \in Messages |-> IF m \in ms THEN Gone(msg[m]) ELSE msg[m]], Each(ms, event))
     /\ done' = done \cup ms
     /\ UNCHANGED <<live, due, own>>

\* All members of all claims up to n are completed, but for the exemptions, which are given back;
\* what was staged under n is published. It is one step. What is settled is not looked at again.
Settle(n, exempt) ==
  LET closing == {k \in Numbers : k > settled /\ k <= n /\ IsOpen(k)}
      ms == UNION {claim[k].members : k \in closing}
      completed == ms \ exempt
      published == IF Bug = "staged-lost" /\ Cardinality(StagedUnder(n)) > 1
                     THEN {CHOOSE m \in StagedUnder(n) : TRUE} ELSE StagedUnder(n)
      isKept == Bug = "settled-twice"
      back(m) == IF Exhausted(msg[m]) THEN Poisoned(msg[m]) ELSE Released(msg[m], 0)
      \* what the store has, and what the log says of it
      row(m) == CASE m \in exempt -> IF Bug = "exemption-lost" THEN Gone(back(m)) ELSE back(m)
                  [] m \in completed -> IF isKept THEN msg[m] ELSE Gone(msg[m])
                  [] m \in published -> [msg[m] EXCEPT !.place = "queue"]
                  [] m \in StagedUnder(n) \ published -> [msg[m] EXCEPT !.place = "lost"]
                  [] OTHER -> msg[m]
      rows == [m \in Messages |-> row(m)]
      given(m) == <<IF Exhausted(msg[m]) THEN Event("poisoned", m, back(m), "max_deliveries")
                                         ELSE Event("released", m, back(m), "exempted")>>
      settling(m) == <<EventIn("settled", m, msg[m], n)>>
      publishing(m) == <<EventIn("published", m, rows[m], n)>>
  IN /\ n > settled /\ n <= Highest
     /\ exempt \subseteq ms /\ \A m \in exempt : msg[m].fence < MaxFence
     /\ Write(rows, Each(exempt, given) \o Each(completed, settling)
                                        \o Each(published, publishing))
     /\ done' = done \cup completed
     /\ IF isKept
          THEN UNCHANGED <<claim, settled, told>>
          ELSE /\ claim' = [k \in Numbers |-> IF k \in closing THEN Closed ELSE claim[k]]
               /\ told' = [k \in Numbers |-> IF k \in closing THEN {} ELSE told[k]]
               /\ settled' = n
     /\ UNCHANGED <<live, due, token, sent>>

\* Answered as if it were done once more.
SettleAgain(n) == n <= settled /\ log' = <<>> /\ UNCHANGED <<core, own>>

-----------------------------------------------------------------------------
(* Everything together. *)

\* What claims hide does not expire.
ClaimTick ==
  LET after == [n \in Numbers |-> [claim[n] EXCEPT !.left = Less(@)]]
  IN /\ Ticked # msg \/ after # claim
     /\ WriteUncounted(Ticked, ATick) /\ UNCHANGED <<counted, done, settled, token, sent, told>>
     /\ live' = [m \in Messages |-> LessLive(live[m])]
     /\ due' = [m \in Messages |-> Less(due[m])]
     /\ claim' = after

\* The calls of the consumer, with a token.
Call(n) ==
  \/ \E ms \in SUBSET Messages : Open(n, ms)
  \/ claim[n].state \in {"open", "parked", "lapsed"} /\ Again(n, "open")
  \/ claim[n].state \in {"open", "parked", "lapsed"} /\ Again(n, "parked")
  \/ claim[n].state = "broken" /\ Again(n, "open")
  \/ \E m \in Messages : Grown(n, m)
  \/ GiveBack(n)
  \/ \E exempt \in SUBSET Members({"open", "parked", "lapsed", "broken"}) : Settle(n, exempt)
  \/ SettleAgain(n)

\* The step of a worker. What it takes or completes leaves the claim that had lapsed.
Work(m) ==
  /\ \/ m \notin Hidden /\ \E life \in Lives : Put(m, 0, life)
     \/ m \notin Hidden /\ Receive(m)
     \/ m \notin Hidden /\ PoisonAtReceive(m)
     \/ m \notin Hidden /\ Expire(m)
     \/ \E f \in 0..msg[m].fence : Complete(m, f) \/ Release(m, f, 0, "failed")
  /\ claim' = IF msg'[m].fence # msg[m].fence \/ msg'[m].place # "queue"
                THEN Lose(claim, {m}) ELSE claim
  /\ UNCHANGED <<settled, token, sent, told>>

\* What is due lapses before anything else happens.
IsDue(n) == claim[n].state \in Hiding /\ claim[n].left = 0

NextClaims ==
  IF \E n \in Numbers : IsDue(n)
    THEN shown' = 0 /\ \E n \in Numbers : LapseClaim(n)
    ELSE \/ \E n \in Numbers, t \in 1..token : Shown(t) /\ Call(n)
         \/ /\ shown' = 0
            /\ \/ ClaimTick
               \/ Attach
               \/ \E n \in Numbers : Discard(n) \/ \E m \in Messages : Stage(m, n)
               \/ \E m \in Messages : Work(m)
SpecClaims == InitClaims /\ [][NextClaims]_claimVars

-----------------------------------------------------------------------------
(* Laws. *)

\* A claim that is whole has the members that its consumer was told of when it was opened first;
\* members only ever leave it, and then it is broken until somebody has accepted that.
ClaimIsFixed ==
  [][\A n \in Numbers :
       LET before == claim[n]  after == claim'[n]
       IN /\ after.members \subseteq told'[n]
          /\ after.lost = 0 /\ after.state # "closed" => after.members = told'[n]
          /\ after.state # "closed" =>
               Cardinality(after.members) + after.lost = Cardinality(told'[n])
          /\ before.state # "closed" /\ after.members # before.members =>
               after.state \in {"broken", "closed"}
    ]_claimVars

\* While a claim hides its members nobody else is given them, nor can a receipt act on one.
ClaimHides ==
  [][\A n \in Numbers : claim[n].state \in Hiding /\ claim[n].left > 0 =>
       \A e \in Of({"received", "claimed", "completed", "renewed", "lapsed", "expired"}) :
         e.m \notin claim[n].members]_claimVars

\* Whoever was attached before does nothing more.
NoStaleCall == [][shown' # 0 /\ own' # own => shown' = token]_claimVars

\* Settled is settled: the number never falls, and what it stands for has left its claims.
SettledStays ==
  [][/\ settled' >= settled
     /\ \A n \in 1..settled' : claim'[n] = Closed]_claimVars

\* Staged sends appear together: of a transaction nothing is staged any more when some of it is
\* published.
PublishedWhole ==
  [][\A e \in Of({"published"}) :
       \A m \in Messages : sent[m] = e.claim => msg'[m].place # "staged" /\ msg'[m].place # "lost"
    ]_claimVars
=============================================================================

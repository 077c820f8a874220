/* Redlock over N independent nodes, as a model for the checker spin. Owns what can happen, and what
 * must never happen; leaves the choice of cases, bounds and words to check.py, and the comparison
 * with a trace of the real flows to trace.py. README.md says which function matches which action.
 *
 * One process takes one action after another, in every possible order. The first line of an
 * action is its guard. Why so small a model is enough ("sound" = it leaves no behaviour out):
 *
 * - Time is relative. Only what is left of each deadline is kept, never what time it is, so the
 *   states are finite although time, crashes, attempts and extensions have no end. One tick moves
 *   all deadlines together; between two ticks anything may happen, in any order.
 * - Clients' clocks tick true and nodes' clocks err. Every deadline of the lock compares one client's
 *   clock with one node's, so only the drift between the two matters: a key lives for its ttl give
 *   or take DRIFT, another error for each key.
 * - A reply is no message of its own. A vote counts from the moment when the node cast it, but when
 *   the client acts on it is free: a late reply is a client that acts late, a lost reply one that never
 *   does. REPLIES makes them messages (a case shows that nothing else comes of it).
 * - A lost message is one that never arrives: no action waits for one.
 * - Once an attempt is over its release may arrive at any node, at any later moment, any number of
 *   times; once an extension was sent, so may it. That is more than can happen (nothing is left out),
 *   and spares their flags.
 * - A token that no key holds and no message carries is as good as fresh. So each client has SLOTS of
 *   them, used again and again: any number of attempts, at most SLOTS of one client with traces left.
 * - A crash of a node that holds no key only takes votes away, as a lost message does: left out.
 * - Nodes are alike, so a state and its mirror images are one: SORTED keeps the one in order.
 */

/* --- bounds and variants: check.py sets them, one named case each --- */
#ifndef N
#define N 3             /* nodes, at most 5 */
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef CLIENTS
#define CLIENTS 2       /* at most 3 */
#endif
#ifndef SLOTS
#define SLOTS 1         /* tokens of one client that are not yet forgotten, at most 2 */
#endif
#ifndef TTL
#define TTL 3           /* ticks */
#endif
#ifndef DRIFT
#define DRIFT 0         /* how far a node's clock may be off over one ttl, either way */
#endif
#ifndef ALLOWANCE
#define ALLOWANCE DRIFT /* by how much a client calls its lease over earlier */
#endif
#ifndef ELAPSED
#define ELAPSED 1       /* 0: validity is counted from the last reply, not from before the first byte */
#endif
#ifndef LATE
#define LATE 1          /* 0: a SET never arrives after its attempt is over */
#endif
#ifndef FRESH
#define FRESH 1         /* 0: a client uses one token for all its attempts */
#endif
#ifndef REPLIES
#define REPLIES 0       /* 1: replies are separate messages */
#endif
#ifndef TWICE_SENT
#define TWICE_SENT 0    /* 1: a SET may arrive any number of times */
#endif
#ifndef CRASH
#define CRASH 0         /* 1: nodes may restart without their keys, any number of times */
#endif
#ifndef QUARANTINE
#define QUARANTINE 0    /* ticks for which a restarted node has no vote */
#endif
#ifndef QUARANTINE_DRIFT
#define QUARANTINE_DRIFT 0 /* by how much the node may end it too early */
#endif
#ifndef MARKER
#define MARKER 0        /* 1: a node has a vote while its marker is there, and QUARANTINE ticks old */
#endif
#ifndef RUN_ID
#define RUN_ID 1        /* 0: the marker does not name the process of the server that wrote it */
#endif
#ifndef FLUSH
#define FLUSH 0         /* 1: FLUSHALL, or eviction: memory is lost, and the server runs on */
#endif
#ifndef STALE
#define STALE 0         /* 1: nodes may restart with what they had on disk, which is older */
#endif
#ifndef PROMOTED
#define PROMOTED 0      /* 1: a replica that lags behind may take a node's place; it has run for long */
#endif
#ifndef JUMP
#define JUMP 0          /* 1: a node's clock may jump forward: a key is gone too early */
#endif
#ifndef EXTEND
#define EXTEND 0        /* 1: leases are extended, any number of times */
#endif
#ifndef IN_TIME
#define IN_TIME 1       /* 0: an extension may be counted after the old validity ended */
#endif
#ifndef FROM_START
#define FROM_START 1    /* 0: an extension's validity is counted from its end */
#endif
#ifndef PROMISE
#define PROMISE 0       /* 1: a lease may be lost before the end of the validity that its holder was promised */
#endif
#ifndef RELEASED_WHEN_LOST
#define RELEASED_WHEN_LOST 0 /* 1: its keys are released as soon as it is lost */
#endif
#ifndef EXTEND_COUNTS_QUARANTINED
#define EXTEND_COUNTS_QUARANTINED 0
#endif
#ifndef RESTORE
#define RESTORE 0       /* 1: after an extension that was won, the key is set again where it is missing */
#endif
#ifndef RESTORE_UNWON
#define RESTORE_UNWON 0  /* 1: also after one that was not */
#endif
#ifndef RESTORE_COUNTS
#define RESTORE_COUNTS 0 /* 1: an extension sets a key that is missing, and counts it at once */
#endif
#ifndef QUIET_LOSS
#define QUIET_LOSS 0    /* 1: not what a round has counted already, and not while a restored key is under way */
#endif
#ifndef PENDING_RELEASES
#define PENDING_RELEASES 0 /* 1: a connection may break with a SET unanswered; its release is sent at once */
#endif
#ifndef CONFIRMED
#define CONFIRMED 0     /* 1: the release that deletes the key ends the pending release */
#endif
#ifndef COPIES
#define COPIES 0        /* 1: another copy of that release may still be under way then */
#endif
#ifndef LONE
#define LONE 0          /* 1: only A extends, restores keys, and loses connections */
#endif
#ifndef EXTEND_COUNTS_PENDING
#define EXTEND_COUNTS_PENDING 0 /* 1: an extension counts nodes with such a pending release */
#endif
#ifndef DOUBT_TRAVELS
#define DOUBT_TRAVELS 1 /* 0: the ticket does not say where a release of the lease may be under way */
#endif
#ifndef SUPPRESSED
#define SUPPRESSED 1    /* 0: the giver may send its release later, where its SET is unanswered */
#endif
#ifndef BY_TOKEN
#define BY_TOKEN 0      /* 1: any process that knows a token may send an extension of it, at any time */
#endif
#ifndef HAND_OVER
#define HAND_OVER 0     /* 1: a lease may end without release and be adopted by its token */
#endif
#ifndef ONLY_WHO_GRANTED
#define ONLY_WHO_GRANTED 0 /* 1: an extension counts only nodes whose grant the acquire had counted */
#endif
#ifndef EXCLUSION
#define EXCLUSION 1     /* 0: do not assert it (traces of worlds that lost memory) */
#endif
#ifndef CONTINUITY
#define CONTINUITY 0    /* 1: also assert that no other client was granted within an extended lease */
#endif
#ifndef LISTED_TWICE
#define LISTED_TWICE 0  /* 1: nodes 1 and 2 are the same server */
#endif
#ifndef IDEMPOTENT
#define IDEMPOTENT 0    /* 1: a node that holds this token grants again */
#endif
#ifndef ORPHANS
#define ORPHANS 0       /* 1: assert that no SET leaves a key behind after its own release was there */
#endif
#ifndef IN_ORDER
#define IN_ORDER 0      /* 1: on one node, a release never overtakes its SET (FIFO) */
#endif
#ifndef TOMBSTONES
#define TOMBSTONES 0    /* 1: a node that saw the release of a token refuses its SET */
#endif
#ifndef SORTED
#define SORTED 0
#endif

/* --- what a plan (follow.pml) can ask for --- */
#define TICK 1
#define BEGIN 2
#define WIN 3
#define FINISH 4
#define SET 5
#define RELEASE 6
#define STRETCH 7
#define REPLY 8
#define EXTEND_SENT 9
#define EXTENDED 10
#define NOT_EXTENDED 11
#define HANDED_OVER 12
#define ADOPT 13
#define ADOPTED 14
#define STRETCH_SENT 15
#define CRASHED 16
#define PEND 17
#define RESTORED 18
#define REFUSED 0       /* what a node can answer: not granted (SET), or the key is another's */
#define GRANTED 1
#define ABSENT 2

#if SORTED && LISTED_TWICE
#error "two nodes that are one server are not like the others"
#endif

/* --- sets of tokens and of clients, one set for each node --- */
#ifdef PLAN
#include "follow.pml"   /* the same actions, each allowed only when the plan of a trace says so */
#else
#define COUNT byte
#define TOKENS (CLIENTS * SLOTS)
#define SETS(name, many) byte name[many]
#define HAS(set, n, i) ((set[n] >> (i)) & 1)
#define ADD(set, n, i) set[n] = set[n] | (1 << (i))
#define DROP(set, n, i) set[n] = set[n] & (255 - (1 << (i)))
#define MAY(action, says) true
#define LIFE (TTL + DRIFT)
#define WINDOW(n) (2 * DRIFT)
#define VALIDITY (TTL - ALLOWANCE)
#define VALID(c) (left[c] > 0)
#define FRESH_VALID(c) (fresh[c] > 0)
#define LEFT(c) (ELAPSED -> left[c] : VALIDITY)
#define FRESH_LEFT(c) (FROM_START -> fresh[c] : VALIDITY)
#define STEP 1
#define WORTH(it) (it)  /* a guard that spares states but forbids nothing */
#define MAY_EXPIRE(n) true
#define SET_WINDOW(n) skip
#define SILENT skip
#define SETTLE skip
#endif
#define OWNER(s) ((s) / SLOTS)
#if HAND_OVER && PENDING_RELEASES && !defined(PLAN)
#define HANDED_ON 1
#if !COPIES && (!DOUBT_TRAVELS || !SUPPRESSED)
#error "a release that no client knows of is a copy: COPIES"
#endif
#else
#define HANDED_ON 0
#endif

/* --- the state --- */
COUNT holder[N];        /* node: whose token its key holds, slot + 1; 0: no key */
COUNT life[N];          /* node: what is left of the key's life */
COUNT quarantine[N];    /* node: how long it has no vote yet */
#if MARKER
SETS(unmarked, N);      /* node: (one bit) its marker is gone, or of a process before */
#endif
#if STALE || PROMOTED
COUNT saved[N];         /* node: the holder that is on disk, or at its replica; and what is left of it */
COUNT saved_life[N];
#endif
SETS(flying, N);        /* node: slots whose SET may still arrive */
SETS(voted, N);         /* node: clients whose present round has its vote */
#if REPLIES
SETS(answered, N);      /* node: clients whose present round has its vote on the way */
#endif
#if ONLY_WHO_GRANTED || PENDING_RELEASES
SETS(trusted, N);       /* node: clients whose acquire had counted its vote */
#endif
#if PENDING_RELEASES
SETS(pending, N);       /* node: slots whose release may arrive although the lease goes on */
#endif
#if HANDED_ON
SETS(unanswered, N);    /* node: clients that handed their lease over, their SET unanswered there */
bool moved[CLIENTS];    /* another process has its lease now */
#endif
#if COPIES
SETS(copies, N);        /* node: slots of which another copy of such a release may arrive */
#endif
#if ORPHANS
SETS(freed, N);         /* node: slots whose release was there */
#endif
#if EXTEND
SETS(stretched, 1);     /* slots for which an extension was sent */
#endif
byte phase[CLIENTS];
COUNT slot[CLIENTS];    /* the present attempt's token */
COUNT left[CLIENTS];    /* what is left of the validity; while asking: what it would be if granted now */
#if EXTEND
COUNT fresh[CLIENTS];   /* the same for an extension that is not decided yet */
#endif
#if RESTORE
bool repairs[CLIENTS];  /* a round was won, and what it found missing may be set again */
#endif
#if CONTINUITY
bool interrupted[CLIENTS]; /* another client was granted since this lease began */
#endif
#if !FRESH
bool ended[CLIENTS];    /* an attempt is over */
#endif
COUNT i; COUNT swapped; /* for loops; back to 0 when an action is over */

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define EXTENDING 3
#define HANDED 4        /* handed over: without a holder, but not released */
#define ADOPTING 5
#define LOST_EARLY 6    /* lost, but the promised validity still binds */

#define AT(n) ((n) - (LISTED_TWICE && (n) == 1))
#define HOLDS(n, s) (holder[AT(n)] == (s) + 1)
#define CURRENT(s) (phase[OWNER(s)] != IDLE && slot[OWNER(s)] == (s))
#define ASKS(s) (CURRENT(s) && phase[OWNER(s)] == ASKING)
#define STRETCHES(s) (CURRENT(s) && (phase[OWNER(s)] == EXTENDING || phase[OWNER(s)] == ADOPTING))

#if N == 1
#define SUM(what, x) (what(0, x))
#elif N == 2
#define SUM(what, x) (what(0, x) + what(1, x))
#elif N == 3
#define SUM(what, x) (what(0, x) + what(1, x) + what(2, x))
#elif N == 4
#define SUM(what, x) (what(0, x) + what(1, x) + what(2, x) + what(3, x))
#else
#define SUM(what, x) (what(0, x) + what(1, x) + what(2, x) + what(3, x) + what(4, x))
#endif
#define VOTE(n, c) HAS(voted, n, c)
#define VOTES(c) SUM(VOTE, c)
#define IN_FLIGHT(n, s) HAS(flying, n, s)
#if STALE || PROMOTED
#define TRACE_OF(n, s) (HAS(flying, n, s) + (holder[n] == (s) + 1) + (saved[n] == (s) + 1))
#else
#define TRACE_OF(n, s) (HAS(flying, n, s) + (holder[n] == (s) + 1))
#endif
#if MARKER
#define UNMARKED(n) HAS(unmarked, n, 0)
#else
#define UNMARKED(n) false
#endif
#define WAITS(n) (quarantine[n] > 0 || UNMARKED(n)) /* it is kept out: it has no vote */
#ifndef FORGOTTEN
#define FORGOTTEN(s) (SUM(TRACE_OF, s) == 0)
#endif

/* --- who and where: every client, node, message --- */
#ifndef PLAN
#if CLIENTS == 2
#define EACH_CLIENT(action) :: action(0) :: action(1)
#else
#define EACH_CLIENT(action) :: action(0) :: action(1) :: action(2)
#endif
#if SLOTS == 1 && CLIENTS == 2
#define EACH_ATTEMPT(action) :: action(0, 0) :: action(1, 1)
#elif SLOTS == 1
#define EACH_ATTEMPT(action) :: action(0, 0) :: action(1, 1) :: action(2, 2)
#elif CLIENTS == 2
#define EACH_ATTEMPT(action) :: action(0, 0) :: action(0, 1) :: action(1, 2) :: action(1, 3)
#else
#define EACH_ATTEMPT(action) \
	:: action(0, 0) :: action(0, 1) :: action(1, 2) :: action(1, 3) :: action(2, 4) :: action(2, 5)
#endif
#if N == 1
#define ON_EACH(action, x) :: action(0, x)
#define EACH_NODE(action) :: action(0)
#elif N == 2
#define ON_EACH(action, x) :: action(0, x) :: action(1, x)
#define EACH_NODE(action) :: action(0) :: action(1)
#elif N == 3
#define ON_EACH(action, x) :: action(0, x) :: action(1, x) :: action(2, x)
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2)
#elif N == 4
#define ON_EACH(action, x) :: action(0, x) :: action(1, x) :: action(2, x) :: action(3, x)
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2) :: action(3)
#else
#define ON_EACH(action, x) \
	:: action(0, x) :: action(1, x) :: action(2, x) :: action(3, x) :: action(4, x)
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2) :: action(3) :: action(4)
#endif
#if TOKENS == 2
#define EACH_TOKEN(action) :: action(0) :: action(1)
#define EACH_MESSAGE(action) ON_EACH(action, 0) ON_EACH(action, 1)
#elif TOKENS == 3
#define EACH_TOKEN(action) :: action(0) :: action(1) :: action(2)
#define EACH_MESSAGE(action) ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2)
#elif TOKENS == 4
#define EACH_TOKEN(action) :: action(0) :: action(1) :: action(2) :: action(3)
#define EACH_MESSAGE(action) \
	ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2) ON_EACH(action, 3)
#else
#define EACH_TOKEN(action) \
	:: action(0) :: action(1) :: action(2) :: action(3) :: action(4) :: action(5)
#define EACH_MESSAGE(action) \
	ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2) ON_EACH(action, 3) \
	ON_EACH(action, 4) ON_EACH(action, 5)
#endif
#endif

#if LONE
#define EACH_HOLDER(action) :: action(0)
#define EACH_PENDING(action) ON_EACH(action, 0)
#else
#define EACH_HOLDER(action) EACH_CLIENT(action)
#define EACH_PENDING(action) EACH_MESSAGE(action)
#endif

/* --- words for the traces: clients are A, B, C; nodes 1 to N --- */
#define NAME(c) ('A' + (c))

/* --- what must hold --- */
inline alone(c) {       /* mutual exclusion: at every grant, no other client has a valid lease */
#if EXCLUSION
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && phase[i] >= HOLDING && left[i] > 0 ->
			printf("  ! %c and %c both hold a valid lease\n", NAME(c), NAME(i));
			assert(false)
		:: else
		fi;
		i++
	od;
	i = 0;
#endif
	skip
}
inline meet(c) {        /* for continuity: the others' leases were interrupted by a grant to c */
#if CONTINUITY
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else -> interrupted[i] = (i != c && phase[i] >= HOLDING) || (i != c && interrupted[i]); i++
	od;
	i = 0;
#endif
	skip
}
inline unbroken(c) {    /* continuity: no other client was granted within an extended lease */
#if CONTINUITY
	if
	:: interrupted[c] -> printf("  ! another client held the lock within %c's lease\n", NAME(c)); assert(false)
	:: else
	fi;
#endif
	skip
}

/* --- helpers --- */
inline forget_votes(c) {
	i = 0;
	do
	:: i >= N -> break
	:: else ->
		DROP(voted, i, c);
#if REPLIES
		DROP(answered, i, c);
#endif
		i++
	od;
	i = 0
}
inline vote(n, c) {
#if REPLIES
	ADD(answered, n, c)
#else
	ADD(voted, n, c)
#endif
}
#if PENDING_RELEASES
#define PENDING(n, s) HAS(pending, n, s)
#define TRUST(n, c) HAS(trusted, n, c)
#if !REPLIES
#error "PENDING_RELEASES needs REPLIES: which votes the client has received matters here"
#endif
#if HANDED_ON           /* the adopter has sent no SETs except to restore keys */
#define AWAITS_SET(n, s) (!moved[OWNER(s)] || (RESTORE && HAS(flying, n, s)))
#else
#define AWAITS_SET(n, s) true
#endif
inline connection_lost(n, s) { /* the client counts this node no more; its release is pending there */
	d_step {
		MAY(PEND, 0) && CURRENT(s) && WORTH(!PENDING(n, s)) && !TRUST(n, OWNER(s)) &&
		!HAS(voted, n, OWNER(s)) && AWAITS_SET(n, s) ->
		printf("%c: loses the connection to node %d, its release is pending there\n",
			NAME(OWNER(s)), (n) + 1);
		ADD(pending, n, s);
		DROP(answered, n, OWNER(s))
	}
}
#if HANDED_ON && !SUPPRESSED
inline old_connection_lost(n, s) { /* of who handed it over: it releases what is another's now */
	d_step {
		CURRENT(s) && moved[OWNER(s)] && HAS(unanswered, n, OWNER(s)) ->
		printf("%c: (the giver) loses the connection to node %d, sends a release there\n",
			NAME(OWNER(s)), (n) + 1);
		DROP(unanswered, n, OWNER(s));
		ADD(copies, n, s)
	}
}
#endif
#else
#define PENDING(n, s) false
#endif
inline stop_flying(s) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> DROP(flying, i, s); i++
	od;
	i = 0
}
#define SWAP(set, x, y) swapped = set[x]; set[x] = set[y]; set[y] = swapped

/* The columns of the state that belong to nodes, in order: a state and its mirror images are one. */
#if MARKER && (STALE || PROMOTED)
#define SAVED_AT(n) ((saved[n] * 16 + saved_life[n]) * 2 + unmarked[n])
#elif MARKER
#define SAVED_AT(n) unmarked[n]
#elif STALE || PROMOTED
#define SAVED_AT(n) (saved[n] * 16 + saved_life[n])
#else
#define SAVED_AT(n) 0
#endif
#define COLUMN(n) ((((holder[n] * 16 + life[n]) * 16 + quarantine[n]) * 64 + flying[n]) * 8 + voted[n])
#define SORTS(n, m) (COLUMN(n) < COLUMN(m) || (COLUMN(n) == COLUMN(m) && SAVED_AT(n) < SAVED_AT(m)))
inline canonical() {
#if SORTED
	i = 0;
	do
	:: i >= N - 1 -> break
	:: i < N - 1 && SORTS(i, i + 1) ->
		printf("swap %d\n", i + 1);
		SWAP(holder, i, i + 1); SWAP(life, i, i + 1); SWAP(quarantine, i, i + 1);
		SWAP(flying, i, i + 1); SWAP(voted, i, i + 1);
#if MARKER
		SWAP(unmarked, i, i + 1);
#endif
#if STALE || PROMOTED
		SWAP(saved, i, i + 1); SWAP(saved_life, i, i + 1);
#endif
#if REPLIES
		SWAP(answered, i, i + 1);
#endif
#if ONLY_WHO_GRANTED || PENDING_RELEASES
		SWAP(trusted, i, i + 1);
#endif
#if PENDING_RELEASES
		SWAP(pending, i, i + 1);
#endif
#if COPIES
		SWAP(copies, i, i + 1);
#endif
#if HANDED_ON
		SWAP(unanswered, i, i + 1);
#endif
#if ORPHANS
		SWAP(freed, i, i + 1);
#endif
		i = (i > 0 -> i - 1 : 0)
	:: else -> i++
	od;
	i = 0;
#endif
	skip
}

/* --- a client acquires --- */
inline begin(c, s) {    /* a fresh token; the SETs leave for all nodes, after the time was read */
	d_step {
		MAY(BEGIN, 0) && phase[c] == IDLE && FORGOTTEN(s) &&
		/* Slots are alike: the second is used only while the first is not forgotten. */
		(s == c * SLOTS || !FORGOTTEN(c * SLOTS)) ->
		phase[c] = ASKING; slot[c] = s; left[c] = VALIDITY;
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			ADD(flying, i, s);
#if ORPHANS
			DROP(freed, i, s);
#endif
#if PENDING_RELEASES
			DROP(pending, i, s);
#endif
#if COPIES
			DROP(copies, i, s);
#endif
			i++
		od;
		i = 0;
#if EXTEND
		DROP(stretched, 0, s);
#endif
		printf("%c: begins an attempt, sends SET to all nodes\n", NAME(c))
	}
}
inline trust_who_granted(c) {
#if ONLY_WHO_GRANTED || PENDING_RELEASES
	i = 0;
	do
	:: i >= N -> break
	:: i < N && HAS(voted, i, c) -> ADD(trusted, i, c); i++
	:: else -> i++
	od;
	i = 0;
#endif
	skip
}
inline win(c) {         /* a quorum has voted, and there is validity left */
	d_step {
		MAY(WIN, 0) && phase[c] == ASKING && VOTES(c) >= QUORUM && VALID(c) ->
		phase[c] = HOLDING; left[c] = LEFT(c);
		printf("%c: counts a quorum -> holds the lock for %d\n", NAME(c), left[c]);
		alone(c);
		meet(c);
#if CONTINUITY
		interrupted[c] = false;
#endif
		trust_who_granted(c);
		forget_votes(c)
	}
}
inline finish(c) {      /* given up, or released, or lost: over for good; releases may arrive from now */
	d_step {
		MAY(FINISH, 0) && phase[c] != IDLE ->
		if
		:: phase[c] == ASKING -> printf("%c: gives up\n", NAME(c))
		:: else -> printf("%c: ends its lease\n", NAME(c))
		fi;
		phase[c] = IDLE; left[c] = 0;
#if EXTEND
		fresh[c] = 0;
#endif
#if RESTORE
		repairs[c] = false;
#endif
#if HANDED_ON
		moved[c] = false;
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(unanswered, i, c); i++
		od;
		i = 0;
#endif
#if CONTINUITY
		interrupted[c] = false;
#endif
#if !FRESH
		ended[c] = true;
#endif
		forget_votes(c);
#if ONLY_WHO_GRANTED || PENDING_RELEASES
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(trusted, i, c); i++
		od;
		i = 0;
#endif
#if !LATE
		stop_flying(slot[c]);
#endif
		slot[c] = 0
	}
}

/* --- a client extends --- */
inline extend(c) {      /* compare-and-expire leaves for all nodes, after the time was read */
	d_step {
		MAY(EXTEND_SENT, 0) && (phase[c] == HOLDING || phase[c] == EXTENDING) && left[c] > 0 ->
		phase[c] = EXTENDING; fresh[c] = VALIDITY;
		forget_votes(c);
		ADD(stretched, 0, slot[c]);
#if RESTORE
		repairs[c] = false;
#endif
		printf("%c: sends EXTEND to all nodes\n", NAME(c))
	}
}
inline extended(c) {    /* a quorum has voted, before the old validity ended */
	d_step {
		MAY(EXTENDED, 0) && phase[c] == EXTENDING && VOTES(c) >= QUORUM && FRESH_VALID(c) &&
		(left[c] > 0 || !IN_TIME) ->
		phase[c] = HOLDING; left[c] = FRESH_LEFT(c); fresh[c] = 0;
		printf("%c: counts a quorum -> its lease is extended, valid for %d\n", NAME(c), left[c]);
		alone(c);
		unbroken(c);
		meet(c);
#if PENDING_RELEASES
		/* Replies keep the order: a node that replied to the extension had replied to the SET. */
		trust_who_granted(c);
#endif
#if RESTORE
		repairs[c] = true;
#endif
		forget_votes(c)
	}
}
#if PROMISE
inline lose(c) {        /* the loss is reported; the holder may rely on the validity promised before */
	d_step {
		(phase[c] == HOLDING || phase[c] == EXTENDING) && left[c] > 0 ->
		phase[c] = LOST_EARLY; fresh[c] = 0;
		printf("%c: loses its lease, which was promised to be valid for %d more\n", NAME(c), left[c]);
		forget_votes(c)
	}
}
#endif
inline not_extended(c) { /* the round is given up; the lease goes on while its validity lasts */
	d_step {
		MAY(NOT_EXTENDED, 0) && (phase[c] == EXTENDING || phase[c] == ADOPTING) ->
		phase[c] = (phase[c] == EXTENDING -> HOLDING : HANDED); fresh[c] = 0;
#if RESTORE_UNWON
		repairs[c] = true;
#endif
		printf("%c: gives this extension up\n", NAME(c));
		forget_votes(c)
	}
}

#if RESTORE
inline restore(c) {      /* SET leaves for all nodes that lack the key; no round waits for it */
	d_step {
		MAY(RESTORED, 0) && phase[c] == HOLDING && left[c] > 0 && repairs[c] ->
		repairs[c] = false;
		i = 0;
		do
		:: i >= N -> break
		:: i < N && holder[i] != slot[c] + 1 -> ADD(flying, i, slot[c]); i++
		:: else -> i++
		od;
		i = 0;
		printf("%c: restores its key, sends SET to all nodes that lack its key\n", NAME(c))
	}
}
#endif

#if BY_TOKEN
inline extend_by_token(s) { /* no lease comes of it */
	d_step {
		MAY(STRETCH_SENT, 0) && WORTH(!HAS(stretched, 0, s) && !FORGOTTEN(s)) ->
		ADD(stretched, 0, s);
		printf("%c: another process sends EXTEND by its token to all nodes\n", NAME(OWNER(s)))
	}
}
#endif

/* --- a lease goes to another process, which has its token but no clock to compare --- */
inline hand_over(c) {
	d_step {
		MAY(HANDED_OVER, 0) && (phase[c] == HOLDING || phase[c] == EXTENDING) ->
		phase[c] = HANDED; left[c] = 0; fresh[c] = 0;
		forget_votes(c);
#if RESTORE
		repairs[c] = false;
#endif
#if HANDED_ON
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			if
			:: !moved[c] && !TRUST(i, c) -> ADD(unanswered, i, c)
			:: else
			fi;
#if !DOUBT_TRAVELS
			if
			:: PENDING(i, slot[c]) -> DROP(pending, i, slot[c]); ADD(copies, i, slot[c])
			:: else
			fi;
#endif
			i++
		od;
		i = 0;
		moved[c] = true;
#endif
		printf("%c: hands its lease over\n", NAME(c))
	}
}
inline adopt(c) {
	d_step {
		MAY(ADOPT, 0) && (phase[c] == HANDED || phase[c] == ADOPTING) ->
		phase[c] = ADOPTING; fresh[c] = VALIDITY;
		forget_votes(c);
		ADD(stretched, 0, slot[c]);
		printf("%c: (the adopter) sends EXTEND to all nodes\n", NAME(c))
	}
}
inline adopted(c) {
	d_step {
		MAY(ADOPTED, 0) && phase[c] == ADOPTING && VOTES(c) >= QUORUM && FRESH_VALID(c) ->
		phase[c] = HOLDING; left[c] = FRESH_LEFT(c); fresh[c] = 0;
		printf("%c: (the adopter) counts a quorum -> holds the lock for %d\n", NAME(c), left[c]);
		alone(c);
		unbroken(c);
		meet(c);
		forget_votes(c)
	}
}

/* --- a node carries a command out --- */
inline no_vote_yet(n, such) {
	if
	:: such -> printf(", but it has no vote yet")
	:: else
	fi
}
#if TOMBSTONES
#define FREE(n, s) (holder[n] == 0 && !HAS(freed, n, s))
#else
#define FREE(n, s) (holder[AT(n)] == 0 || (IDEMPOTENT && HOLDS(n, s)))
#endif
inline set_granted(n, s) {
	d_step {
		MAY(SET, GRANTED) && HAS(flying, n, s) && FREE(n, s) && !(MARKER && WAITS(n)) ->
		printf("%c: SET on node %d -> granted", NAME(OWNER(s)), (n) + 1);
		no_vote_yet(n, quarantine[AT(n)] > 0);
		if
		:: ASKS(s) -> printf("\n")
		:: !ASKS(s) && CURRENT(s) -> printf(", no round waits for it any more\n")
		:: else -> printf(", but late: its attempt is over\n")
		fi;
#if !TWICE_SENT
		DROP(flying, n, s);
#endif
#if ORPHANS
		if
		:: HAS(freed, n, s) -> printf("  ! a key stays behind: its release was there before\n"); assert(false)
		:: else
		fi;
#endif
		if
		:: holder[AT(n)] == 0 -> holder[AT(n)] = (s) + 1; life[AT(n)] = LIFE; SET_WINDOW(n)
		:: else
		fi;
		if
		:: ASKS(s) && quarantine[AT(n)] == 0 && !PENDING(n, s) -> vote(n, OWNER(s))
		:: else
		fi
	}
}
inline set_refused(n, s) {
	d_step {
		MAY(SET, REFUSED) && HAS(flying, n, s) && !FREE(n, s) ->
		printf("%c: SET on node %d -> refused\n", NAME(OWNER(s)), (n) + 1);
#if !TWICE_SENT
		DROP(flying, n, s);
#endif
	}
}
inline set_lost(n, s) { /* only of an attempt that is over: before, not arriving is enough */
	d_step {
		HAS(flying, n, s) && !CURRENT(s) ->
		printf("%c: SET to node %d is lost\n", NAME(OWNER(s)), (n) + 1);
		DROP(flying, n, s)
	}
}
#if COPIES
#define RELEASED(n, s) (!CURRENT(s) || PENDING(n, s) || HAS(copies, n, s))
#elif RELEASED_WHEN_LOST
#define RELEASED(n, s) (!CURRENT(s) || phase[OWNER(s)] == LOST_EARLY)
#elif FRESH
#define RELEASED(n, s) (!CURRENT(s) || PENDING(n, s))
#else
#define RELEASED(n, s) (!CURRENT(s) || ended[OWNER(s)])
#endif
inline key_released(n, s) {
	d_step {
		MAY(RELEASE, GRANTED) && HOLDS(n, s) && RELEASED(n, s) && !(IN_ORDER && HAS(flying, n, s)) ->
		printf("%c: release on node %d -> deletes the key\n", NAME(OWNER(s)), (n) + 1);
		holder[AT(n)] = 0; life[AT(n)] = 0;
#if CONFIRMED
		DROP(pending, n, s);
#endif
#if COPIES
		ADD(copies, n, s);
#endif
#if ORPHANS
		ADD(freed, n, s);
#endif
	}
}
#if ORPHANS
inline nothing_released(n, s) { /* without effect, so it matters for orphans only */
	d_step {
		holder[n] != (s) + 1 && HAS(flying, n, s) && !HAS(freed, n, s) && !CURRENT(s) && !IN_ORDER ->
		printf("%c: release on node %d -> finds no key of its\n", NAME(OWNER(s)), (n) + 1);
		ADD(freed, n, s)
	}
}
#endif
#define COUNTED(n, s) (STRETCHES(s) && (!PENDING(n, s) || EXTEND_COUNTS_PENDING) && \
	(!WAITS(AT(n)) || EXTEND_COUNTS_QUARANTINED))
inline key_extended(n, s) { /* never shortens a life */
	d_step {
		MAY(STRETCH, GRANTED) && HAS(stretched, 0, s) && HOLDS(n, s) ->
		printf("%c: EXTEND on node %d -> extended", NAME(OWNER(s)), (n) + 1);
		no_vote_yet(n, WAITS(AT(n)) && !EXTEND_COUNTS_QUARANTINED);
		printf("\n");
		if
		:: life[AT(n)] < LIFE -> life[AT(n)] = LIFE; SET_WINDOW(n)
		:: else
		fi;
		if
#if ONLY_WHO_GRANTED
		:: COUNTED(n, s) && HAS(trusted, n, OWNER(s)) -> vote(n, OWNER(s))
#else
		:: COUNTED(n, s) -> vote(n, OWNER(s))
#endif
		:: else
		fi
	}
}
#if RESTORE_COUNTS
inline key_set_again(n, s) { /* by an extension that found it missing */
	d_step {
		HAS(stretched, 0, s) && STRETCHES(s) && FREE(n, s) && !WAITS(n) ->
		printf("%c: EXTEND on node %d -> finds no key, sets it, granted\n", NAME(OWNER(s)), (n) + 1);
		holder[n] = (s) + 1; life[n] = LIFE;
		vote(n, OWNER(s))
	}
}
#endif
#if REPLIES
inline received(n, c) {
	d_step {
		MAY(REPLY, 0) && HAS(answered, n, c) ->
		printf("%c: receives the vote of node %d\n", NAME(c), (n) + 1);
		DROP(answered, n, c);
		ADD(voted, n, c)
	}
}
#endif

#ifdef PLAN
/* --- what changes nothing: the proof leaves it out for that, but in a trace it must be true --- */
#define TRUE_OF(n, s) ((answer == ABSENT && holder[n] == 0) || \
	(answer == REFUSED && holder[n] != 0 && holder[n] != (s) + 1))
inline released_in_vain(n, s) {
	d_step { what == RELEASE && TRUE_OF(n, s) && RELEASED(n, s) -> skip }
}
inline extended_in_vain(n, s) {
	d_step { what == STRETCH && TRUE_OF(n, s) && HAS(stretched, 0, s) -> skip }
}
inline received_in_vain(n, c) { /* no round waits for it any more */
	d_step { what == REPLY && !ASKS(c) && !STRETCHES(c) -> skip }
}
#endif

/* --- a node loses a key --- */
inline expires_early(n) { /* its clock is fast, or slow by less than it could be */
	d_step {
		MAY_EXPIRE(n) && holder[n] != 0 && life[n] <= WINDOW(n) ->
		printf("   the key of %c expires on node %d\n", NAME(OWNER(holder[n] - 1)), (n) + 1);
		holder[n] = 0; life[n] = 0;
		SILENT
	}
}
inline votes_early(n) {
	d_step {
		quarantine[n] > 0 && quarantine[n] <= QUARANTINE_DRIFT ->
		printf("   node %d has a vote again (early by its clock)\n", (n) + 1);
		quarantine[n] = 0
	}
}
inline jumps(n) {
	d_step {
		holder[n] != 0 ->
		printf("   the clock of node %d jumps forward: the key of %c expires\n",
			(n) + 1, NAME(OWNER(holder[n] - 1)));
		holder[n] = 0; life[n] = 0
	}
}
/* What a node knows of its past: INFO has its uptime; the marker goes with its memory. */
inline runs_afresh(n) {
#if MARKER
	ADD(unmarked, n, 0); quarantine[n] = 0
#else
	quarantine[n] = QUARANTINE
#endif
}
#if QUIET_LOSS
#define TOPS_UP(c) (repairs[c] || (phase[c] >= HOLDING && SUM(IN_FLIGHT, slot[c]) > 0))
#define MAY_LOSE(n) (voted[n] == 0 && !TOPS_UP(0) && !TOPS_UP(1))
#else
#define MAY_LOSE(n) true
#endif
inline crashes(n) {
	d_step {
		MAY(CRASHED, 0) && WORTH(holder[n] != 0) ->
		printf("   node %d restarts without its keys\n", (n) + 1);
		holder[n] = 0; life[n] = 0; runs_afresh(n)
	}
}
inline flushed(n) {
	d_step {
		holder[n] != 0 && MAY_LOSE(n) ->
		printf("   node %d is flushed\n", (n) + 1);
		holder[n] = 0; life[n] = 0;
#if MARKER
		runs_afresh(n)
#endif
	}
}
#if STALE || PROMOTED
inline saves(n) {
	d_step {
		saved[n] != holder[n] || saved_life[n] != life[n] ->
		printf("   node %d writes its keys to disk and to its replica\n", (n) + 1);
		saved[n] = holder[n]; saved_life[n] = life[n]
	}
}
inline goes_back(n) {
	if
	:: saved[n] != 0 -> printf("with the key of %c\n", NAME(OWNER(saved[n] - 1)))
	:: else -> printf("without a key\n")
	fi;
	holder[n] = saved[n]; life[n] = saved_life[n]
}
inline restarts_with_old_keys(n) {
	d_step {
		saved[n] != holder[n] || saved_life[n] != life[n] ->
		printf("   node %d restarts as it was when it last wrote, ", (n) + 1);
		goes_back(n);
#if !MARKER || RUN_ID
		runs_afresh(n)    /* else the marker is old, too, and as good as it was */
#endif
	}
}
inline replica_promoted(n) {
	d_step {
		saved[n] != holder[n] || saved_life[n] != life[n] ->
		printf("   the replica of node %d takes its place, ", (n) + 1);
		goes_back(n);
#if MARKER
		runs_afresh(n)    /* its run_id is another; but its uptime is old enough */
#endif
	}
}
#endif
#if MARKER
inline marker_written(n) { /* by the next client that comes */
	d_step {
		UNMARKED(n) ->
		printf("   the marker of node %d is written\n", (n) + 1);
		DROP(unmarked, n, 0); quarantine[n] = QUARANTINE
	}
}
#endif

/* --- time --- */
#define LESS(what) what = (what > STEP -> what - STEP : 0)
inline tick_node(n) {
	if
	:: holder[n] != 0 && life[n] <= STEP ->
		printf("   the key of %c expires on node %d\n", NAME(OWNER(holder[n] - 1)), (n) + 1);
		holder[n] = 0
	:: else
	fi;
	if
	:: quarantine[n] == 1 -> printf("   node %d has a vote again\n", (n) + 1)
	:: else
	fi;
#if STALE || PROMOTED
	if
	:: saved_life[n] <= STEP -> saved[n] = 0
	:: else
	fi;
	LESS(saved_life[n]);
#endif
	LESS(life[n]); LESS(quarantine[n])
}
inline tick_client(c) {
	if
	:: phase[c] >= HOLDING && left[c] > 0 && left[c] <= STEP ->
		printf("   the validity of %c's lease ends\n", NAME(c))
	:: else
	fi;
	LESS(left[c]);
#if EXTEND
	LESS(fresh[c]);
#endif
	skip
}
inline tick() {
	d_step {
		MAY(TICK, 0) ->
		printf("   a tick passes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else -> tick_node(i); i++
		od;
		i = 0;
		do
		:: i >= CLIENTS -> break
		:: else -> tick_client(i); i++
		od;
		i = 0
	}
}

active proctype world() {
#ifdef PLAN
	d_step { load() }
#endif
	do
	:: atomic {
	if
	EACH_ATTEMPT(begin)
	EACH_CLIENT(win)
	EACH_CLIENT(finish)
	EACH_MESSAGE(set_granted)
	EACH_MESSAGE(set_refused)
	EACH_MESSAGE(key_released)
	:: tick()
#if LATE && !defined(PLAN)
	EACH_MESSAGE(set_lost)
#endif
#if ORPHANS
	EACH_MESSAGE(nothing_released)
#endif
#if EXTEND
	EACH_HOLDER(extend)
	EACH_HOLDER(extended)
	EACH_HOLDER(not_extended)
#if PROMISE
	EACH_HOLDER(lose)
#endif
	EACH_MESSAGE(key_extended)
#endif
#if PENDING_RELEASES
	EACH_PENDING(connection_lost)
#endif
#if HANDED_ON && !SUPPRESSED
	EACH_PENDING(old_connection_lost)
#endif
#if BY_TOKEN
	EACH_TOKEN(extend_by_token)
#endif
#if HAND_OVER
	EACH_HOLDER(hand_over)
	EACH_HOLDER(adopt)
	EACH_HOLDER(adopted)
#endif
#if REPLIES
	EACH_MESSAGE(received)
#endif
#if DRIFT
	EACH_NODE(expires_early)
#endif
#if QUARANTINE_DRIFT
	EACH_NODE(votes_early)
#endif
#if JUMP
	EACH_NODE(jumps)
#endif
#if CRASH
	EACH_NODE(crashes)
#endif
#if FLUSH
	EACH_NODE(flushed)
#endif
#if STALE || PROMOTED
	EACH_NODE(saves)
#endif
#if STALE
	EACH_NODE(restarts_with_old_keys)
#endif
#if PROMOTED
	EACH_NODE(replica_promoted)
#endif
#if MARKER
	EACH_NODE(marker_written)
#endif
#if RESTORE
	EACH_HOLDER(restore)
#endif
#if RESTORE_COUNTS
	EACH_MESSAGE(key_set_again)
#endif
#ifdef PLAN
	FOLLOW
#endif
	fi;
	d_step { canonical(); swapped = 0; SETTLE }
	}
	od
}

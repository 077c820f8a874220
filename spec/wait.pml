/* Waiting for the lock in queues on N nodes, as a model for the checker spin. Owns who waits, what
 * queues, calls and reservations do, and what must never happen; leaves validity, drift and lost
 * memory to redlock.pml, and the choice of cases, bounds and words to check.py.
 *
 * Each waiter is a process of the model, and so is the world (faults, and keys that expire). The loop
 * of each takes one action after another, in every possible order. The first line of an action is
 * its guard. There are two questions, with the same nodes and commands:
 *
 * - Exclusion (HINTS 1): queues, calls and reservations are hints. So here there is no queue: a
 *   free node may be reserved for any waiter at any time, a reservation may end at any time, a waiter
 *   may ask at any time, a round may be given up although it could be won, commands may be lost, and
 *   a waiter acquires again and again. Whatever the queues do, it is among that.
 * - Progress (HINTS 0): spin searches a fair run in which a waiter waits for ever, or a key stays. Here
 *   the number of faults is bounded (FAULTS), and what has a deadline in the code happens in its order:
 *   a round is given up when it cannot be won; a waiter looks when a look changes something;
 *   the reservation for a live waiter that has its call stays until the waiter asks; and
 *   of the waiters that fewer than a quorum have called one asks at a time, and each in turn, as
 *   patience is longer than a round, and grows at random. Each FAULT may break one of these.
 *
 * Why so small a model is enough:
 *
 * - Commands of one waiter to one node keep their order (rule 3 of the core), in `sent`, at most
 *   ROOM of them. The vote, the ticket and the call of a node count from the moment when the node
 *   acted, but when the waiter acts on them is free.
 * - A waiter has one token: the fresh token of its next round is sent behind the release of the
 *   last one on every node. A command is of the round that is under way if no release follows it.
 * - A live holder's keys do not expire here: that is redlock.pml. A dead one's do, one by one.
 * - For progress, a waiter acquires once: tickets stay small, and every fair run ends. A process that
 *   acquires again has a new place, so it is another waiter.
 * - Nodes are alike, so a state and its mirror images are one: they are sorted.
 */

/* --- bounds and variants: check.py sets them, one named case each --- */
#ifndef N
#define N 3              /* nodes, 2 or 3 */
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef WAITERS
#define WAITERS 2        /* 2 or 3 */
#endif
#ifndef HINTS
#define HINTS 0          /* 1: exclusion, whatever the hints say; 0: progress */
#endif
#ifndef LTL
#define LTL 0            /* 1: search fair runs that never settle, not only states that cannot go on */
#endif
#ifndef FAULTS
#define FAULTS 0         /* how many calls, places and commands are lost, nodes restart, reservations end early */
#endif
#ifndef CRASHES
#define CRASHES 0        /* how many waiters may crash */
#endif
#ifndef QUITS
#define QUITS 0          /* 1: a waiter may leave while it waits */
#endif
#ifndef HELD
#define HELD 0           /* 1: another process holds the lock; if WAITERS is 3, until all have queued */
#endif
#ifndef DELETED
#define DELETED 0        /* 1: its keys may also expire, or another library deletes them */
#endif
#ifndef ROOM
#define ROOM 3           /* commands of one waiter to one node that are under way, at most 4 */
#endif
#ifndef PARALLEL
#define PARALLEL WAITERS /* of how many waiters commands may be under way at once, when one sends its next */
#endif
#ifndef CLEAN
#define CLEAN 0          /* 1: assert that no place of a waiter stays behind (needs commands that arrive) */
#endif
/* what must fail */
#ifndef HOLDER_RESPECTED
#define HOLDER_RESPECTED 1 /* 0: a called waiter's acquire overwrites whatever is at the key */
#endif
#ifndef CALLS_ARE_VOTES
#define CALLS_ARE_VOTES 0 /* 1: a reservation counts as the waiter's vote */
#endif
#ifndef EXPIRY
#define EXPIRY 1         /* 0: a reservation never expires */
#endif
#ifndef LOOKS
#define LOOKS 1          /* 0: a waiter never looks */
#endif
#ifndef ONLY_QUEUED
#define ONLY_QUEUED 1    /* 0: a correction also adds the place (ZADD without XX) */
#endif
#ifndef QUEUES_AGAIN
#define QUEUES_AGAIN 1   /* 0: after a lost round the token is released, but the place is not queued */
#endif
#ifndef PATIENCE
#define PATIENCE 1       /* 0: a waiter asks only when a quorum has called it */
#endif
#ifndef IN_TURN
#define IN_TURN 1        /* 0: such rounds may overlap, again and again (patience without chance) */
#endif
#ifndef JOIN_PASSES
#define JOIN_PASSES 1    /* 0: a place that is queued while the key is absent is not called */
#endif

/* --- the state --- */
#define NOTHING 0
#define TOKEN(w) ((w) + 1)
#define NEXT(w) (WAITERS + 1 + (w))
#define OTHER (2 * WAITERS + 1)

/* commands, one decimal digit each; the lowest is the first that the node carries out */
#define SET_NX 1         /* SET NX of the first attempt, without a place */
#define JOIN 2           /* release the token, queue with max + 1 */
#define CORRECT 3        /* queue with the agreed ticket, if queued */
#define TAKE 4           /* out of the queue; set if the key is absent or reserved for this place */
#define AGAIN 5          /* release the token, queue with the agreed ticket */
#define RELEASE 6        /* release the token */
#define QUIT 7           /* release the token, out of the queue */
#define STRAY 8          /* out of the queue: the reply to a call for a place that has ended */
#define LOOK 9           /* queue with the agreed ticket */

#define IDLE 0
#define ASKING 1         /* the first attempt */
#define JOINING 2        /* fewer than a quorum have proposed a ticket */
#define QUEUED 3
#define TAKING 4
#define HOLDING 5
#define DONE 6
#define DEAD 7

#if HELD
byte key[N] = OTHER;
#else
byte key[N];             /* node: what its key holds */
#endif
short sent[N * WAITERS]; /* node: the commands under way from a waiter */
byte ticket[N * WAITERS]; /* node: the ticket of a waiter in its queue; 0: not queued */
byte called[N];          /* node: (bits) waiters that it has called */
byte voted[N];           /* node: (bits) waiters whose present round has its vote */
byte phase[WAITERS];
byte agreed[WAITERS];    /* the waiter's ticket; while joining: the largest proposal */
#if FAULTS
byte faults;
#endif
#if CRASHES
byte crashes;
#endif
#if !HINTS
byte tried;              /* (bits) waiters that asked before a quorum had called them */
#endif
byte i; byte first; short swapped; bool stop; /* 0 when an action is over */

#define AT(set, n, w) set[(n) * WAITERS + (w)]
#define HAS(set, n, w) ((set[n] >> (w)) & 1)
#define ADD(set, n, w) set[n] = set[n] | (1 << (w))
#define DROP(set, n, w) set[n] = set[n] & (255 - (1 << (w)))
#define BIT(n, w) HAS(voted, n, w)
#define CALL(n, w) HAS(called, n, w)
#if N == 2
#define SUM(what, w) (what(0, w) + what(1, w))
#define ALL(what, w) (what(0, w) && what(1, w))
#define SOME_NODE(what, w) (what(0, w) || what(1, w))
#define ON_EACH(action, w) :: action(0, w) :: action(1, w)
#define EACH_NODE(action) :: action(0) :: action(1)
#else
#define SUM(what, w) (what(0, w) + what(1, w) + what(2, w))
#define ALL(what, w) (what(0, w) && what(1, w) && what(2, w))
#define SOME_NODE(what, w) (what(0, w) || what(1, w) || what(2, w))
#define ON_EACH(action, w) :: action(0, w) :: action(1, w) :: action(2, w)
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2)
#endif
#if WAITERS == 2
#define EVERY(what) (what(0) && what(1))
#define SOME(what) (what(0) || what(1))
#define COUNT(what) (what(0) + what(1))
#define EACH_WAITER(action) :: action(0) :: action(1)
#define EACH_PLACE(action) ON_EACH(action, 0) ON_EACH(action, 1)
#else
#define EVERY(what) (what(0) && what(1) && what(2))
#define SOME(what) (what(0) || what(1) || what(2))
#define COUNT(what) (what(0) + what(1) + what(2))
#define EACH_WAITER(action) :: action(0) :: action(1) :: action(2)
#define EACH_PLACE(action) ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2)
#endif

#if CALLS_ARE_VOTES
#define VOTE(n, w) (BIT(n, w) || CALL(n, w))
#else
#define VOTE(n, w) BIT(n, w)
#endif
#define VOTES(w) SUM(VOTE, w)
#define CALLS(w) SUM(CALL, w)

#define HEAD(n, w) (AT(sent, n, w) % 10)
#define LENGTH_OF(s) (((s) > 0) + ((s) > 9) + ((s) > 99) + ((s) > 999))
#define LENGTH(n, w) LENGTH_OF(AT(sent, n, w))
#define SHORT(n, w) (LENGTH(n, w) <= ROOM - 2)
#define SILENT(n, w) (AT(sent, n, w) == 0)
#define SPACE(n, w) (LENGTH(n, w) < ROOM)
/* a command that asks for the vote, with no release behind it: the last or the last but one */
#define LAST(s) ((s) > 999 -> (s) / 1000 : ((s) > 99 -> (s) / 100 : ((s) > 9 -> (s) / 10 : (s))))
#define ASKS(c) ((c) == SET_NX || (c) == TAKE)
#define IN(c, s) ((s) % 10 == (c) || ((s) / 10) % 10 == (c) || ((s) / 100) % 10 == (c) || (s) / 1000 == (c))
#define ENDS(s) (IN(JOIN, s) || IN(AGAIN, s) || IN(RELEASE, s) || IN(QUIT, s))
#define OPEN(n, w) (LAST(AT(sent, n, w)) == SET_NX || LAST(AT(sent, n, w)) == TAKE || \
	(LAST(AT(sent, n, w)) == CORRECT && IN(TAKE, AT(sent, n, w))))
#define TO_JOIN(n, w) IN(JOIN, AT(sent, n, w))
#define UNDER_WAY(w) (phase[w] == ASKING || phase[w] == TAKING)
#define WAITS(w) (phase[w] >= ASKING && phase[w] <= TAKING)
#define WAITER_OF(n) (key[n] - WAITERS - 1)
#define RESERVED(n) (key[n] > WAITERS && key[n] <= 2 * WAITERS)

#if FAULTS
#define MAY_FAIL (faults < FAULTS)
#define FAULT faults++
#else
#define MAY_FAIL false
#define FAULT skip
#endif

/* --- words for the traces --- */
#define NAME(w) ('A' + (w))

/* --- helpers --- */
inline send(n, w, command) {
	if
	:: AT(sent, n, w) == 0 -> AT(sent, n, w) = command
	:: AT(sent, n, w) > 0 && AT(sent, n, w) < 10 -> AT(sent, n, w) = AT(sent, n, w) + 10 * command
	:: AT(sent, n, w) > 9 && AT(sent, n, w) < 100 -> AT(sent, n, w) = AT(sent, n, w) + 100 * command
	:: else -> assert(AT(sent, n, w) < 1000); AT(sent, n, w) = AT(sent, n, w) + 1000 * command
	fi
}
inline send_all(w, command) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> send(i, w, command); DROP(voted, i, w); i++
	od;
	i = 0
}
/* The queue is in order of tickets, ties in order of places. */
inline find_first(n) {
	first = 0;
	i = 0;
	do
	:: i >= WAITERS -> break
	:: i < WAITERS && AT(ticket, n, i) > 0 &&
		(first == 0 || AT(ticket, n, i) < AT(ticket, n, first - 1)) -> first = i + 1; i++
	:: else -> i++
	od;
	i = 0
}
#define LISTENS(w) (phase[w] != DEAD)
#if HINTS
inline pass_on(n) { key[n] = NOTHING } /* `reserved` follows it, or not */
#else
inline pass_on(n) {      /* to the first place whose process listens */
	stop = false;
	do
	:: stop -> break
	:: else ->
		find_first(n);
		if
		:: first == 0 -> key[n] = NOTHING; printf("   node %d is free\n", (n) + 1); stop = true
		:: first > 0 && !LISTENS(first - 1) -> AT(ticket, n, first - 1) = 0
		:: else ->
			AT(ticket, n, first - 1) = 0;
			key[n] = NEXT(first - 1);
			printf("   node %d is reserved for %c, and calls it\n", (n) + 1, NAME(first - 1));
			if
			:: WAITS(first - 1) -> ADD(called, n, first - 1)
			:: (phase[first - 1] == HOLDING || phase[first - 1] == DONE) &&
				SPACE(n, first - 1) -> send(n, first - 1, STRAY)
			:: else
			fi;
			stop = true
		fi
	od;
	stop = false; first = 0
}
#endif
inline propose(n, w) {   /* max + 1 */
	first = 0;
	i = 0;
	do
	:: i >= WAITERS -> break
	:: i < WAITERS && AT(ticket, n, i) > first -> first = AT(ticket, n, i); i++
	:: else -> i++
	od;
	i = 0;
	AT(ticket, n, w) = first + 1;
	if
	:: phase[w] == JOINING && agreed[w] < first + 1 -> agreed[w] = first + 1
	:: else
	fi;
	first = 0
}
inline agree(n, w) {     /* after a proposal: a quorum of them makes the ticket */
	if
	:: phase[w] == JOINING && SUM(TO_JOIN, w) <= N - QUORUM ->
		phase[w] = QUEUED;
		printf("%c: has the ticket %d\n", NAME(w), agreed[w]);
		i = 0;
		do
		:: i >= N -> break
		:: i < N && !TO_JOIN(i, w) && SPACE(i, w) &&
			(AT(ticket, i, w) != agreed[w]) -> send(i, w, CORRECT); i++
		:: else -> i++
		od;
		i = 0
	:: (phase[w] == QUEUED || phase[w] == TAKING) && SPACE(n, w) &&
		AT(ticket, n, w) != agreed[w] -> send(n, w, CORRECT)
	:: else
	fi
}
#define OURS(n, w) (key[n] == TOKEN(w) || key[n] == NEXT(w))

#define SWAP(set, x, y) swapped = set[x]; set[x] = set[y]; set[y] = swapped
#define SWAP_AT(set, n, w) SWAP(set, (n) * WAITERS + w, ((n) + 1) * WAITERS + w)
#define CELL(n, w) (AT(sent, n, w) * 4 + AT(ticket, n, w))
#define COLUMN(n) ((key[n] * 8 + called[n]) * 8 + voted[n])
#if WAITERS == 2
#define TAIL(n, m) false
#else
#define TAIL(n, m) (CELL(n, 1) == CELL(m, 1) && CELL(n, 2) < CELL(m, 2))
#endif
#define SORTS(n, m) (COLUMN(n) < COLUMN(m) || (COLUMN(n) == COLUMN(m) && (CELL(n, 0) < CELL(m, 0) || \
	(CELL(n, 0) == CELL(m, 0) && (CELL(n, 1) < CELL(m, 1) || TAIL(n, m))))))
inline canonical() {
	i = 0;
	do
	:: i >= N - 1 -> break
	:: i < N - 1 && SORTS(i, i + 1) ->
		printf("swap %d\n", i + 1);
		SWAP(key, i, i + 1); SWAP(called, i, i + 1); SWAP(voted, i, i + 1);
		SWAP_AT(sent, i, 0); SWAP_AT(sent, i, 1); SWAP_AT(ticket, i, 0); SWAP_AT(ticket, i, 1);
#if WAITERS == 3
		SWAP_AT(sent, i, 2); SWAP_AT(ticket, i, 2);
#endif
		i = (i > 0 -> i - 1 : 0)
	:: else -> i++
	od;
	i = 0; swapped = 0
}

/* --- what a waiter does --- */
#define BUSY(w) (!ALL(SILENT, w))
#define MAY_SEND (PARALLEL >= WAITERS || COUNT(BUSY) < PARALLEL)
#if !HINTS
inline begin(w) {        /* a first attempt; if it knows that the lock is held, it queues at once */
	d_step {
		phase[w] == IDLE ->
#if HELD
		phase[w] = JOINING;
		printf("%c: queues on all nodes\n", NAME(w));
		send_all(w, JOIN);
#else
		phase[w] = ASKING;
		printf("%c: begins an attempt, sends SET NX to all nodes\n", NAME(w));
		send_all(w, SET_NX);
#endif
		canonical()
	}
}
#endif
inline win(w) {
	d_step {
		UNDER_WAY(w) && VOTES(w) >= QUORUM ->
		phase[w] = HOLDING; agreed[w] = 0;
#if !HINTS
		tried = 0;
#endif
		printf("%c: counts a quorum -> holds the lock\n", NAME(w));
		i = 0;
		do
		:: i >= WAITERS -> break
		:: i < WAITERS && i != w && phase[i] == HOLDING ->
			printf("  ! %c and %c both hold the lock\n", NAME(w), NAME(i));
			assert(false);
			i++
		:: else -> i++
		od;
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(voted, i, w); DROP(called, i, w); i++
		od;
		i = 0;
		canonical()
	}
}
#if HINTS
#define MAY_LOSE(w) true
#else
#define MAY_LOSE(w) (VOTES(w) + SUM(OPEN, w) < QUORUM)
#endif
inline lose(w) {         /* give back, and queue: again with its ticket, or for the first time */
	d_step {
		UNDER_WAY(w) && ALL(SPACE, w) && MAY_LOSE(w) && MAY_SEND ->
		printf("%c: loses its round, gives back on all nodes\n", NAME(w));
		if
		:: HINTS -> phase[w] = IDLE; send_all(w, RELEASE)
		:: !HINTS && phase[w] == ASKING -> phase[w] = JOINING; send_all(w, JOIN)
		:: else -> phase[w] = QUEUED; send_all(w, (QUEUES_AGAIN -> AGAIN : RELEASE))
		fi;
		canonical()
	}
}
#if HINTS
#define MAY_TAKE(w) (phase[w] == IDLE)
#elif !PATIENCE
#define MAY_TAKE(w) (phase[w] == QUEUED && CALLS(w) >= QUORUM)
#else                    /* called by a quorum; or by fewer, and its patience ends */
#define MAY_TAKE(w) (phase[w] == QUEUED && CALLS(w) > 0 && \
	(CALLS(w) >= QUORUM || ITS_TURN(w) || MAY_FAIL || (!IN_TURN && ALL(SILENT, w))))
#define QUIET(w) (!UNDER_WAY(w) && ALL(SILENT, w))
#define TRIED(w) ((tried >> (w)) & 1)
#define NEXT_TO_TRY(w) (phase[w] == QUEUED && CALLS(w) > 0 && !TRIED(w))
#define ITS_TURN(w) (EVERY(QUIET) && (!TRIED(w) || !SOME(NEXT_TO_TRY)))
#endif
inline take(w) {
	d_step {
		MAY_TAKE(w) && ALL(SHORT, w) && MAY_SEND ->
#if HINTS
		printf("%c: sends its acquire to all nodes\n", NAME(w));
#else
		printf("%c: was called by %d, sends its acquire to all nodes\n", NAME(w), CALLS(w));
#if PATIENCE && IN_TURN
		if
		:: CALLS(w) >= QUORUM -> skip
		:: CALLS(w) < QUORUM && ITS_TURN(w) ->
			tried = (SOME(NEXT_TO_TRY) -> tried : 0) | (1 << w)
		:: else -> FAULT
		fi;
#endif
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(called, i, w); i++
		od;
#endif
		phase[w] = TAKING;
		send_all(w, TAKE);
		canonical()
	}
}
inline finish(w) {
	d_step {
		phase[w] == HOLDING && ALL(SPACE, w) && MAY_SEND ->
		phase[w] = (HINTS -> IDLE : DONE);
		printf("%c: releases on all nodes\n", NAME(w));
		send_all(w, RELEASE);
		canonical()
	}
}
#if !HINTS
inline quit(w) {         /* its timeout */
	d_step {
		WAITS(w) && ALL(SPACE, w) && MAY_SEND ->
		phase[w] = DONE; agreed[w] = 0;
		printf("%c: does not wait any longer, leaves on all nodes\n", NAME(w));
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(called, i, w); i++
		od;
		send_all(w, QUIT);
		canonical()
	}
}
/* What a look changes: a place that was forgotten, a call that was lost, a key that is free. */
#define WORTH_LOOKING(n, w) (key[n] == NOTHING || (key[n] == NEXT(w) && !HAS(called, n, w)) || \
	(key[n] != NEXT(w) && AT(ticket, n, w) == 0))
inline look(n, w) {
	d_step {
		phase[w] == QUEUED && AT(sent, n, w) == 0 && WORTH_LOOKING(n, w) && MAY_SEND ->
		printf("%c: looks on node %d\n", NAME(w), (n) + 1);
		send(n, w, LOOK);
		canonical()
	}
}
#endif

/* --- a node carries out a command --- */
#if HOLDER_RESPECTED
#define GRANTS(n, w) (key[n] == NOTHING || key[n] == NEXT(w))
#else
#define GRANTS(n, w) true
#endif
inline ask(n, w, granted) {
	if
	:: granted ->
		printf("granted\n");
		key[n] = TOKEN(w);
		if
		:: UNDER_WAY(w) && !ENDS(AT(sent, n, w)) -> ADD(voted, n, w)
		:: else
		fi
	:: else -> printf("refused\n")
	fi
}
inline release_or_not(n, such) {
	if
	:: such -> pass_on(n)
	:: else
	fi
}
inline carry_out(n, w) {
	d_step {
		AT(sent, n, w) > 0 ->
		swapped = HEAD(n, w);
		AT(sent, n, w) = AT(sent, n, w) / 10;
		if
		:: swapped == SET_NX ->
			printf("%c: SET NX on node %d -> ", NAME(w), (n) + 1);
			ask(n, w, key[n] == NOTHING)
		:: swapped == TAKE ->
			printf("%c: acquire with its place on node %d -> ", NAME(w), (n) + 1);
			AT(ticket, n, w) = 0; DROP(called, n, w);
			ask(n, w, GRANTS(n, w))
		:: swapped == JOIN ->
			printf("%c: joins the queue of node %d", NAME(w), (n) + 1);
			propose(n, w);
			printf(", which proposes %d\n", AT(ticket, n, w));
			agree(n, w);
			DROP(called, n, w);
			release_or_not(n, OURS(n, w) || (JOIN_PASSES && key[n] == NOTHING))
		:: swapped == AGAIN || swapped == LOOK ->
			printf("%c: queues on node %d with its ticket\n", NAME(w), (n) + 1);
			AT(ticket, n, w) = (agreed[w] > 0 -> agreed[w] : 1); /* forgotten: any */
			DROP(called, n, w);
			release_or_not(n, key[n] == NEXT(w) || key[n] == NOTHING ||
				(swapped == AGAIN && key[n] == TOKEN(w)))
		:: swapped == CORRECT ->
			printf("%c: corrects its ticket on node %d\n", NAME(w), (n) + 1);
			if
			:: AT(ticket, n, w) > 0 || !ONLY_QUEUED ->
				AT(ticket, n, w) = (agreed[w] > 0 -> agreed[w] : 1)
			:: else
			fi
		:: swapped == RELEASE ->
			printf("%c: release on node %d\n", NAME(w), (n) + 1);
			release_or_not(n, key[n] == TOKEN(w))
		:: else ->
			printf("%c: leaves the queue of node %d\n", NAME(w), (n) + 1);
			AT(ticket, n, w) = 0;
			release_or_not(n, key[n] == NEXT(w) || (swapped == QUIT && key[n] == TOKEN(w)))
		fi;
		swapped = 0;
#if CLEAN
		if
		:: (phase[w] == HOLDING || phase[w] == DONE) && AT(sent, n, w) == 0 && AT(ticket, n, w) > 0 ->
			printf("  ! the place of %c stays in the queue of node %d\n", NAME(w), (n) + 1);
			assert(false)
		:: else
		fi;
#endif
		canonical()
	}
}

/* --- what happens to them --- */
#if HINTS
#define MAY_EXPIRE(n) RESERVED(n)
inline reserved(n, w) {
	d_step {
		key[n] == NOTHING ->
		key[n] = NEXT(w);
		printf("   node %d is reserved for %c, and calls it\n", (n) + 1, NAME(w));
#if CALLS_ARE_VOTES
		ADD(called, n, w);
#endif
		canonical()
	}
}
#else                    /* that of a dead waiter, or of one without a call; and a dead one's token */
#define CALL_HEARD(n, w) (WAITS(w) && (HAS(called, n, w) || AT(sent, n, w) > 0))
#define MAY_EXPIRE(n) ((RESERVED(n) && EXPIRY && !CALL_HEARD(n, WAITER_OF(n))) || \
	(key[n] > 0 && key[n] <= WAITERS && phase[key[n] - 1] == DEAD && AT(sent, n, key[n] - 1) == 0))
#endif
inline expires(n) {
	d_step {
		MAY_EXPIRE(n) ->
		printf("   the key on node %d expires\n", (n) + 1);
		key[n] = NOTHING;
		canonical()
	}
}
#if HELD
#define JOINED(w) (WAITERS < 3 || (phase[w] > JOINING && !SOME_NODE(TO_JOIN, w)))
inline freed(n) {        /* by a release of the other process, which passes on */
	d_step {
		key[n] == OTHER && EVERY(JOINED) ->
		printf("   the holder's release on node %d\n", (n) + 1);
		pass_on(n);
		canonical()
	}
}
inline deleted(n) {      /* its ttl, or the release of another library */
	d_step {
		key[n] == OTHER && EVERY(JOINED) ->
		printf("   the holder's key on node %d is deleted\n", (n) + 1);
		key[n] = NOTHING;
		canonical()
	}
}
#endif
#if FAULTS || HINTS
inline take_lost(n, w) { /* with its connection; its release is pending, and will be sent */
	d_step {
		(HINTS || MAY_FAIL) && ASKS(HEAD(n, w)) ->
		printf("   the acquire of %c to node %d is lost\n", NAME(w), (n) + 1);
		AT(sent, n, w) = AT(sent, n, w) / 10;
		FAULT;
		canonical()
	}
}
#endif
#if FAULTS
inline expires_early(n) { /* before the waiter that was called asks */
	d_step {
		MAY_FAIL && EXPIRY && RESERVED(n) && HAS(called, n, WAITER_OF(n)) ->
		printf("   the reservation on node %d expires early\n", (n) + 1);
		key[n] = NOTHING;
		FAULT;
		canonical()
	}
}
inline call_lost(n, w) {
	d_step {
		MAY_FAIL && HAS(called, n, w) ->
		printf("   the call of node %d to %c is lost\n", (n) + 1, NAME(w));
		DROP(called, n, w);
		FAULT;
		canonical()
	}
}
inline place_lost(n, w) { /* the node called it while the connection was broken: nothing listened */
	d_step {
		MAY_FAIL && AT(ticket, n, w) > 0 ->
		printf("   the place of %c on node %d is lost\n", NAME(w), (n) + 1);
		AT(ticket, n, w) = 0;
		FAULT;
		canonical()
	}
}
inline restarts(n) {     /* without its queue; with tokens: what they need is in redlock.pml */
	d_step {
		MAY_FAIL && (RESERVED(n) || key[n] == NOTHING) ->
		printf("   node %d restarts without its queue\n", (n) + 1);
		key[n] = NOTHING; called[n] = 0;
		i = 0;
		do
		:: i >= WAITERS -> break
		:: else -> AT(ticket, n, i) = 0; i++
		od;
		i = 0;
		FAULT;
		canonical()
	}
}
#endif
#if CRASHES
inline crashed(w) {
	d_step {
		crashes < CRASHES && phase[w] != IDLE && phase[w] < DONE ->
		printf("%c: crashes\n", NAME(w));
		phase[w] = DEAD; agreed[w] = 0; crashes++;
		i = 0;
		do
		:: i >= N -> break
		:: else -> DROP(called, i, w); DROP(voted, i, w); i++
		od;
		i = 0;
		canonical()
	}
}
inline sent_in_vain(n, w) {
	d_step {
		phase[w] == DEAD && AT(sent, n, w) > 0 ->
		printf("   what %c had sent to node %d is lost\n", NAME(w), (n) + 1);
		AT(sent, n, w) = 0;
		canonical()
	}
}
#endif

/* --- progress: no waiter waits for ever, and no key stays --- */
#define OVER(w) (phase[w] >= DONE && ALL(SILENT, w))
#define FREE(n, w) (key[n] == NOTHING)
#define settled (EVERY(OVER) && ALL(FREE, 0))
#if LTL
ltl progress { <> settled }
#endif

#if QUITS
#define MAY_QUIT(w) :: quit(w)
#else
#define MAY_QUIT(w)
#endif
#if HINTS
#define WAITS_IN_QUEUE(w)
#elif LOOKS
#define WAITS_IN_QUEUE(w) :: begin(w) ON_EACH(look, w) MAY_QUIT(w)
#else
#define WAITS_IN_QUEUE(w) :: begin(w) MAY_QUIT(w)
#endif
#define WAITER(w) \
end_of_waiter: \
	do \
	:: take(w) \
	:: win(w) \
	:: lose(w) \
	:: finish(w) \
	ON_EACH(carry_out, w) \
	WAITS_IN_QUEUE(w) \
	od

active proctype waiter_a() { WAITER(0) }
active proctype waiter_b() { WAITER(1) }
#if WAITERS == 3
active proctype waiter_c() { WAITER(2) }
#endif
active proctype world() {
	do
	EACH_NODE(expires)
#if HINTS
	EACH_PLACE(reserved)
#else
	:: settled -> break  /* any other end is a state that cannot go on */
#endif
#if HELD
	EACH_NODE(freed)
#if DELETED
	EACH_NODE(deleted)
#endif
#endif
#if FAULTS || HINTS
	EACH_PLACE(take_lost)
#endif
#if FAULTS
	EACH_NODE(expires_early)
	EACH_PLACE(call_lost)
	EACH_PLACE(place_lost)
	EACH_NODE(restarts)
#endif
#if CRASHES
	EACH_WAITER(crashed)
	EACH_PLACE(sent_in_vain)
#endif
	od
}

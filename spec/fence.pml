/* Fences on a quorum of N nodes, as a model for the checker spin. Owns what nodes may issue, what a
 * client may make of it, and what must never happen to fences; leaves validity, time and who holds the
 * lock to redlock.pml, and the choice of cases to check.py. README.md says which function matches
 * which action.
 *
 * There is no time here, because the claim needs none: fences are unique and rise as long as the values
 * that one node issues rise, whatever clocks, pauses and messages do. So the model allows the worst:
 *
 * - ANY: a key may be free at any moment, as if it had just expired, although it is held. Any
 *   number of clients may think that they hold it. Without ANY, keys are honoured: one is free again
 *   only after its attempt is over and its release was there. What holds with ANY holds always.
 * - A message may arrive at any later moment, also long after its attempt is over, or never; a refused
 *   one is as good as lost, so refusals are no actions.
 * - A client may have received any of its votes: it may take for the largest whatever is the largest of
 *   some quorum of them. So replies are not separate messages.
 * - Counters only grow, so attempts are counted: each client has ATTEMPTS of them.
 * - Nodes are alike: SORTED keeps one of a state and its mirror images.
 * - When no attempt is left that could get a fence, nothing can go wrong any more: LIVE ends there.
 */

/* --- bounds and variants: check.py sets them, one named case each --- */
#ifndef N
#define N 3             /* nodes, at most 5 */
#endif
#define QUORUM (N / 2 + 1)
#ifndef CLIENTS
#define CLIENTS 2       /* at most 3 */
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2      /* of one client; at most 2 */
#endif
#ifndef ANY
#define ANY 0           /* 1: keys are free at any moment: mutual exclusion is broken altogether */
#endif
#ifndef JUMPS
#define JUMPS 0         /* 1: a counter follows the node's clock: what it issues next may leave some out */
#endif
#ifndef UNEVEN
#define UNEVEN 0        /* 1: counters are absent at first, and the clocks that seed them differ */
#endif
#ifndef CRASHES
#define CRASHES 0       /* how often a node may lose its key and its counter */
#endif
/* What a client takes for its fence. */
#ifndef WRITTEN_BACK
#define WRITTEN_BACK 1  /* 0: the largest that was issued, not written back */
#endif
#ifndef MIDDLE
#define MIDDLE 0        /* 1: of a quorum's values the smallest, not written back */
#endif
#ifndef PLUS_ONE
#define PLUS_ONE 0      /* 1: one more than the largest, to be written back by a quorum */
#endif
/* What a node does when it is to raise its counter. */
#ifndef BLIND
#define BLIND 0         /* 1: it sets it, whatever it was, and says yes */
#endif
#ifndef MERGE
#define MERGE 0         /* 1: it keeps the larger of the two, and says yes always */
#endif
#ifndef WHILE_OURS
#define WHILE_OURS 1    /* 0: also when the key is another's by then */
#endif
#ifndef TWICE_SENT
#define TWICE_SENT 0    /* 1: a raise may arrive any number of times */
#endif
/* What a node does that has lost its counter. */
#ifndef RESEED
#define RESEED 1        /* 0: counts from nothing; 1: from above all that it issued (its clock) */
#endif
#ifndef BEHIND
#define BEHIND 0        /* 1: its clock was set back: it issues its last value again */
#endif
#ifndef ABSTAIN
#define ABSTAIN 0       /* 1: issues nothing until a client that was given a fence has raised it */
#endif
#ifndef RAISE_ABSENT
#define RAISE_ABSENT 0  /* 1: lets itself be raised although it has no counter */
#endif
#ifndef KEY_STAYS
#define KEY_STAYS 0     /* 1: it loses its counter alone (evicted, or run out) */
#endif
#ifndef AHEAD
#define AHEAD 1         /* 0: clocks seed no more than they must, one above the past */
#endif
#ifndef RESTORE
#define RESTORE 0       /* 1: holders set their key again on nodes that lost it, and seed the counter */
#endif
#ifndef SEED_FROM_FENCE
#define SEED_FROM_FENCE 0 /* 1: with their own fence, not from the node's clock */
#endif
#ifndef SORTED
#define SORTED 0
#endif

#define TOKENS (CLIENTS * ATTEMPTS)
#define OWNER(a) ((a) / ATTEMPTS)
/* The lock is one client's at a time: then fences are in the order of its holders. */
#define IN_ORDER (!ANY && !CRASHES)
#define LIMIT 31        /* fences are bits of an int */

/* --- the state --- */
byte counter[N];        /* node: the largest value that it issued; what it remembers, but for `absent` */
bit absent[N];          /* node: it has lost its counter (the one above is what it forgot) */
byte holder[N];         /* node: whose key it holds, attempt + 1; 0: none */
byte flying[N];         /* node: attempts whose acquire may still arrive */
byte raising[N];        /* node: attempts whose raise may still arrive */
#if ABSTAIN
byte sharing[N];        /* node: attempts that were given a fence and may send it to a fresh node */
#endif
byte issued[N * CLIENTS]; /* what a node has issued to the present attempt of a client; 0: nothing */
byte lifted[N];         /* node: clients for whose present attempt it has issued their target, raised */
byte phase[CLIENTS];
byte begun[CLIENTS];    /* attempts so far */
byte before[CLIENTS];   /* the largest fence that was given before this attempt began; later, its own */
byte target[TOKENS];    /* what an attempt wants nodes to be raised to */
byte largest;           /* the largest fence that was given */
int given;              /* all fences that were given, as bits */
byte crashed;
byte i; byte j; byte swapped; byte value; byte was; /* for loops; back to 0 when an action is over */

#define IDLE 0
#define ASKING 1
#define RAISING 2
#define HOLDING 3

#define HAS(set, n, a) ((set[n] >> (a)) & 1)
#define ADD(set, n, a) set[n] = set[n] | (1 << (a))
#define DROP(set, n, a) set[n] = set[n] & (255 - (1 << (a)))
#define ISSUED(n, c) issued[(n) * CLIENTS + (c)]
#define PRESENT(c) ((c) * ATTEMPTS + begun[c] - 1)
#define CURRENT(a) (phase[OWNER(a)] != IDLE && PRESENT(OWNER(a)) == (a))
#define OVER(a) (begun[OWNER(a)] > (a) % ATTEMPTS && !CURRENT(a))

#if N == 1
#define SUM(what, x, y) (what(0, x, y))
#define EACH_NODE(action) :: action(0)
#define ON_EACH(action, x) :: action(0, x)
#elif N == 3
#define SUM(what, x, y) (what(0, x, y) + what(1, x, y) + what(2, x, y))
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2)
#define ON_EACH(action, x) :: action(0, x) :: action(1, x) :: action(2, x)
#else
#define SUM(what, x, y) \
	(what(0, x, y) + what(1, x, y) + what(2, x, y) + what(3, x, y) + what(4, x, y))
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2) :: action(3) :: action(4)
#define ON_EACH(action, x) \
	:: action(0, x) :: action(1, x) :: action(2, x) :: action(3, x) :: action(4, x)
#endif
#if CLIENTS == 1
#define EACH_CLIENT(action) :: action(0)
#define EACH_VOTE(action) ON_EACH(action, 0)
#define EXISTS(what) (what(0))
#elif CLIENTS == 2
#define EACH_CLIENT(action) :: action(0) :: action(1)
#define EACH_VOTE(action) ON_EACH(action, 0) ON_EACH(action, 1)
#define EXISTS(what) (what(0) || what(1))
#else
#define EACH_CLIENT(action) :: action(0) :: action(1) :: action(2)
#define EACH_VOTE(action) ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2)
#define EXISTS(what) (what(0) || what(1) || what(2))
#endif
#if TOKENS == 1
#define EACH_MESSAGE(action) ON_EACH(action, 0)
#elif TOKENS == 2
#define EACH_MESSAGE(action) ON_EACH(action, 0) ON_EACH(action, 1)
#elif TOKENS == 3
#define EACH_MESSAGE(action) ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2)
#elif TOKENS == 4
#define EACH_MESSAGE(action) \
	ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2) ON_EACH(action, 3)
#else
#define EACH_MESSAGE(action) \
	ON_EACH(action, 0) ON_EACH(action, 1) ON_EACH(action, 2) ON_EACH(action, 3) \
	ON_EACH(action, 4) ON_EACH(action, 5)
#endif

#define ISSUED_THAT(n, c, v) \
	(ISSUED(n, c) == (v) || (HAS(lifted, n, c) && (v) == target[PRESENT(c)]))
#define ISSUED_UP_TO(n, c, v) (ISSUED(n, c) > 0 && ISSUED(n, c) <= (v))
#define ISSUED_FROM(n, c, v) (ISSUED(n, c) >= (v))
#define WAITED_FOR(n, a, _) HAS(raising, n, a)
#define HOPES(c) (phase[c] == ASKING || phase[c] == RAISING || begun[c] < ATTEMPTS)
#define LIVE EXISTS(HOPES)

/* --- words for the traces: clients are A, B, C; nodes 1 to N --- */
#define NAME(c) ('A' + (c))

/* --- helpers --- */
#define SWAP(list, x, y) swapped = list[x]; list[x] = list[y]; list[y] = swapped
#if CLIENTS == 1
#define VOTES_AT(n) ISSUED(n, 0)
#elif CLIENTS == 2
#define VOTES_AT(n) (ISSUED(n, 0) * 32 + ISSUED(n, 1))
#else
#define VOTES_AT(n) ((ISSUED(n, 0) * 32 + ISSUED(n, 1)) * 32 + ISSUED(n, 2))
#endif
#define MEMORY_AT(n) (((counter[n] * 2 + absent[n]) * 8 + holder[n]) * 64 + flying[n])
#define BEFORE(n, m) (MEMORY_AT(n) < MEMORY_AT(m) || (MEMORY_AT(n) == MEMORY_AT(m) && \
	(VOTES_AT(n) < VOTES_AT(m) || (VOTES_AT(n) == VOTES_AT(m) && raising[n] * 8 + lifted[n] < raising[m] * 8 + lifted[m]))))
inline canonical() {    /* the columns of the state that belong to nodes, in order */
#if SORTED
	i = 0;
	do
	:: i >= N - 1 -> break
	:: i < N - 1 && BEFORE(i, i + 1) ->
		printf("swap %d\n", i + 1);
		SWAP(counter, i, i + 1); SWAP(absent, i, i + 1); SWAP(holder, i, i + 1);
		SWAP(flying, i, i + 1); SWAP(raising, i, i + 1);
		SWAP(lifted, i, i + 1);
#if ABSTAIN
		SWAP(sharing, i, i + 1);
#endif
		j = 0;
		do
		:: j >= CLIENTS -> break
		:: else -> SWAP(issued, i * CLIENTS + j, (i + 1) * CLIENTS + j); j++
		od;
		j = 0;
		i = (i > 0 -> i - 1 : 0)
	:: else -> i++
	od;
	i = 0;
#endif
	skip
}
inline forget_target(a) { /* nothing is left that wants it */
	if
	:: OVER(a) && SUM(WAITED_FOR, a, 0) == 0 -> target[a] = 0
	:: else
	fi
}

/* --- a client --- */
/* Clients are alike: with one attempt each, they may as well begin in turn. */
#define IN_TURN(c) (ATTEMPTS > 1 || (c) == 0 || begun[(c) - ((c) > 0)] > 0)
/* With one attempt each, and keys that are free at any moment, an end changes nothing. */
#define ENDS (!ANY || ATTEMPTS > 1)
inline begin(c) {
	d_step {
		phase[c] == IDLE && begun[c] < ATTEMPTS && IN_TURN(c) ->
		begun[c]++; phase[c] = ASKING; before[c] = largest;
		i = 0;
		do
		:: i >= N -> break
		:: else -> ADD(flying, i, PRESENT(c)); i++
		od;
		i = 0;
		printf("%c: begins an attempt, sends ACQUIRE to all nodes\n", NAME(c))
	}
}
inline give(c, v) {     /* what must hold of every fence that is given */
	if
	:: (given >> (v)) & 1 -> printf("  ! %d was given before\n", v); assert(false)
	:: else ->
		if
		:: (v) <= before[c] ->
			printf("  ! %d was given before this attempt began, and is not smaller\n", before[c]);
			assert(false)
		:: IN_ORDER && (v) <= largest ->
			printf("  ! the holder before had %d\n", largest); assert(false)
		:: else
		fi
	fi;
	given = given | (1 << (v));
	largest = ((v) > largest -> (v) : largest);
	before[c] = v;
	phase[c] = HOLDING;
#if ABSTAIN
	i = 0;
	do
	:: i >= N -> break
	:: else -> ADD(sharing, i, PRESENT(c)); i++
	od;
	i = 0;
#endif
	skip
}
/* A fence comes from a value that node n has issued to this attempt. */
#if MIDDLE
#define ENOUGH(n, c) (phase[c] == ASKING && SUM(ISSUED_FROM, c, ISSUED(n, c)) >= QUORUM)
#elif !WRITTEN_BACK
#define ENOUGH(n, c) (phase[c] == ASKING && SUM(ISSUED_UP_TO, c, ISSUED(n, c)) >= QUORUM)
#else
#define ENOUGH(n, c) ((phase[c] == ASKING || phase[c] == RAISING) && !PLUS_ONE && \
	SUM(ISSUED_THAT, c, ISSUED(n, c)) >= QUORUM)
#endif
inline fenced(n, c) {
	d_step {
		ISSUED(n, c) > 0 && ENOUGH(n, c) ->
		value = ISSUED(n, c);
		printf("%c: is given the fence %d\n", NAME(c), value);
		give(c, value);
		value = 0
	}
}
inline fenced_by_raise(c) { /* with one more than the largest, which no node had issued before */
	d_step {
		PLUS_ONE && phase[c] == RAISING && SUM(ISSUED_THAT, c, target[PRESENT(c)]) >= QUORUM ->
		value = target[PRESENT(c)];
		printf("%c: is given the fence %d\n", NAME(c), value);
		give(c, value);
		value = 0
	}
}
inline choose(n, c) {   /* no quorum issued one value: take the largest, raise the others */
	d_step {
		WRITTEN_BACK && !MIDDLE && phase[c] == ASKING && ISSUED(n, c) > 0 &&
		SUM(ISSUED_UP_TO, c, ISSUED(n, c)) >= QUORUM ->
		phase[c] = RAISING;
		value = ISSUED(n, c) + PLUS_ONE;
		target[PRESENT(c)] = value;
		i = 0;
		do
		:: i >= N -> break
		:: i < N && ISSUED(i, c) < value -> ADD(raising, i, PRESENT(c)); i++
		:: else -> i++
		od;
		i = 0;
		printf("%c: sends RAISE to %d\n", NAME(c), value);
		value = 0
	}
}
inline finish(c) {      /* given up, or released, or lost */
	d_step {
		phase[c] != IDLE ->
		if
		:: phase[c] == HOLDING -> printf("%c: ends its lease\n", NAME(c))
		:: else -> printf("%c: gives up\n", NAME(c))
		fi;
		phase[c] = IDLE; before[c] = 0;
		i = 0;
		do
		:: i >= N -> break
		:: else -> ISSUED(i, c) = 0; DROP(lifted, i, c); i++
		od;
		i = 0;
		forget_target(PRESENT(c))
	}
}

/* --- a node --- */
inline too_late(a) {
	if
	:: !CURRENT(a) -> printf(", but late: its attempt is over")
	:: else
	fi;
	printf("\n")
}
inline issue(n, a, v) {
	counter[n] = v; absent[n] = 0; holder[n] = (a) + 1;
	assert(counter[n] < LIMIT);
	if
	:: CURRENT(a) && phase[OWNER(a)] != HOLDING -> ISSUED(n, OWNER(a)) = counter[n]
	:: else
	fi
}
#define GRANTS(n, a) (LIVE && HAS(flying, n, a) && (ANY || holder[n] == 0))
inline acquire(n, a, v) {
	d_step {
		GRANTS(n, a) && !absent[n] ->
		DROP(flying, n, a);
		issue(n, a, v);
		printf("%c: ACQUIRE on node %d -> granted, issues %d", NAME(OWNER(a)), (n) + 1, counter[n]);
		too_late(a)
	}
}
inline acquired(n, a) { acquire(n, a, counter[n] + 1) }
inline acquired_ahead(n, a) { acquire(n, a, counter[n] + 2) }
/* A counter that is absent is seeded: how far the node's clock is above its past is unknown. */
inline seed(n, a, v) {
	d_step {
		GRANTS(n, a) && absent[n] && !ABSTAIN && !(BEHIND && counter[n] == 0) ->
		DROP(flying, n, a);
		issue(n, a, v);
		printf("%c: ACQUIRE on node %d -> granted, seeds its counter, issues %d",
			NAME(OWNER(a)), (n) + 1, counter[n]);
		too_late(a)
	}
}
#if BEHIND
#define SEED counter[n]
#else
#define SEED (counter[n] + 1)
#endif
inline seeded(n, a) { seed(n, a, SEED) }
inline seeded_ahead(n, a) { seed(n, a, SEED + 1) }
#if BLIND
#define RAISES(n, a) true
#define RAISED(n, a) target[a]
#elif MERGE
#define RAISES(n, a) true
#define RAISED(n, a) (counter[n] > target[a] -> counter[n] : target[a])
#else
#define RAISES(n, a) ((absent[n] && RAISE_ABSENT) || (!absent[n] && counter[n] < target[a]))
#define RAISED(n, a) target[a]
#endif
inline raised(n, a) {
	d_step {
		LIVE && HAS(raising, n, a) && RAISES(n, a) && (!WHILE_OURS || holder[n] == (a) + 1) ->
#if !TWICE_SENT
		DROP(raising, n, a);
#endif
		was = counter[n];
		counter[n] = RAISED(n, a); absent[n] = 0;
		printf("%c: RAISE on node %d -> raised to %d", NAME(OWNER(a)), (n) + 1, target[a]);
		if
		:: counter[n] > target[a] -> printf(" (it had %d, and says yes)", was)
		:: else
		fi;
		was = 0;
		too_late(a);
		if
		:: CURRENT(a) && phase[OWNER(a)] == RAISING -> ADD(lifted, n, OWNER(a))
		:: else
		fi;
		forget_target(a)
	}
}
inline released(n) {
	d_step {
		LIVE && !ANY && holder[n] != 0 && OVER(holder[n] - 1) ->
		printf("%c: RELEASE on node %d -> deletes the key\n", NAME(OWNER(holder[n] - 1)), (n) + 1);
		holder[n] = 0
	}
}

/* --- a node forgets --- */
inline crashes(n) {
	d_step {
		LIVE && crashed < CRASHES ->
		crashed++;
#if KEY_STAYS
		printf("   node %d loses its counter\n", (n) + 1);
#else
		printf("   node %d restarts without its key and its counter\n", (n) + 1);
		holder[n] = 0;
#endif
#if RESEED
		absent[n] = 1
#else
		counter[n] = 0
#endif
	}
}
#if ABSTAIN
inline shared(n, a) {
	d_step {
		LIVE && HAS(sharing, n, a) && absent[n] && CURRENT(a) && phase[OWNER(a)] == HOLDING ->
		counter[n] = before[OWNER(a)]; absent[n] = 0;
		printf("%c: sends node %d its fence -> counts from %d\n", NAME(OWNER(a)), (n) + 1, counter[n]);
		DROP(sharing, n, a)
	}
}
#endif
#if SEED_FROM_FENCE
#define SEED_OF(n, c) before[c]
#else
#define SEED_OF(n, c) (counter[n] + 1)
#endif
inline restored(n, c) { /* issues nothing to anybody */
	d_step {
		LIVE && phase[c] == HOLDING && (ANY || holder[n] == 0) && absent[n] ->
		holder[n] = PRESENT(c) + 1; counter[n] = SEED_OF(n, c); absent[n] = 0;
		printf("%c: RESTORE on node %d -> granted, seeds its counter with %d\n",
			NAME(c), (n) + 1, counter[n])
	}
}

active proctype world() {
#if UNEVEN
	d_step {
		do
		:: i >= N -> break
		:: else -> absent[i] = 1; i++
		od;
		i = 0
	}
#endif
	do
	:: atomic {
	if
	EACH_CLIENT(begin)
	EACH_VOTE(fenced)
	EACH_VOTE(choose)
#if PLUS_ONE
	EACH_CLIENT(fenced_by_raise)
#endif
#if ENDS
	EACH_CLIENT(finish)
#endif
	EACH_MESSAGE(acquired)
#if JUMPS
	EACH_MESSAGE(acquired_ahead)
#endif
	EACH_MESSAGE(raised)
	EACH_NODE(released)
#if CRASHES || UNEVEN
	EACH_MESSAGE(seeded)
#if AHEAD
	EACH_MESSAGE(seeded_ahead)
#endif
#endif
#if CRASHES
	EACH_NODE(crashes)
#endif
#if ABSTAIN
	EACH_MESSAGE(shared)
#endif
#if RESTORE
	EACH_VOTE(restored)
#endif
	fi;
	d_step { canonical(); swapped = 0 }
	}
	od
}

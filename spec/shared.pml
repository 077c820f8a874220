/* Readers that share a lock, and writers that have it alone, for the model checker spin.
 *
 * Each attempt is that of a reader or of a writer.  A node grants a reader unless it has a writer's token,
 * and a writer only if it has no token.  An attempt is won if a quorum has granted it.  With COUNTING, a node
 * keeps the number of its readers, and a release that arrives takes one away, also where the attempt was
 * refused.  With UPGRADE, a reader may ask to become the writer; a node that has no other token agrees.  The
 * reductions are those of redlock.pml: time is relative, clocks of nodes err by DRIFT, a message arrives at
 * any later moment or is lost, a release arrives at any moment and any number of times, a token without
 * traces is as good as a fresh one, and nodes are interchangeable, so their columns are sorted.
 *
 * What must hold: a client with a valid lease as writer is the only one with a valid lease; and when an
 * extension is granted, no client was granted a lease that excludes this one since it began.
 */
#ifndef N
#define N 3
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef SLOTS
#define SLOTS 1          /* tokens of one client that may have traces at once */
#endif
#ifndef TTL
#define TTL 3
#endif
#ifndef DRIFT
#define DRIFT 0          /* in how many ticks a node's clock errs */
#endif
#ifndef ALLOWANCE
#define ALLOWANCE DRIFT  /* what a client subtracts for it */
#endif
#ifndef CRASH
#define CRASH 0          /* 1: a node may forget all keys, at any moment */
#endif
#ifndef QUARANTINE
#define QUARANTINE 0     /* for so many ticks after that it casts no vote */
#endif
#ifndef EXTEND
#define EXTEND 0
#endif
#ifndef LAX
#define LAX 0            /* 1: a node grants a reader beside a writer */
#endif
#ifndef COUNTING
#define COUNTING 0       /* 1: a release takes any one reader away */
#endif
#ifndef UPGRADE
#define UPGRADE 0        /* what becomes of an upgrade that no quorum agreed to, at the nodes that did agree:
                          * 1: the key is released there; 2: the token is a reader's again; 3: the lease ends */
#endif

#define TOKENS (CLIENTS * SLOTS)
#define OWNER(t) ((t) / SLOTS)
/* A node's column: for each token what is left of its life (3 bits), a request under way, a vote of the
 * present round, whether it was upgraded here; and the node's quarantine. */
#define W 6
#define LIFE(n, t) ((col[n] >> ((t) * W)) & 7)
#define FLY(n, t) ((col[n] >> ((t) * W + 3)) & 1)
#define VOTED(n, t) ((col[n] >> ((t) * W + 4)) & 1)
#define LIFTED(n, t) ((col[n] >> ((t) * W + 5)) & 1)
#define QUAR(n) ((col[n] >> 28) & 7)
#define PUT(n, shift, mask, v) col[n] = (col[n] & ~((mask) << (shift))) | ((v) << (shift))
#define SET_LIFE(n, t, v) PUT(n, (t) * W, 7, v)
#define SET_FLY(n, t, v) PUT(n, (t) * W + 3, 1, v)
#define SET_VOTED(n, t, v) PUT(n, (t) * W + 4, 1, v)
#define SET_LIFTED(n, t, v) PUT(n, (t) * W + 5, 1, v)
#define SET_QUAR(n, v) PUT(n, 28, 7, v)

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define EXTENDING 3
#define UPGRADING 4

int col[N];
byte phase[CLIENTS];
byte slot[CLIENTS];      /* its present token */
byte left[CLIENTS];      /* of the validity */
bool reads[TOKENS];      /* it is a reader's; else a writer's */
#if EXTEND
byte fresh[CLIENTS];     /* of the validity, if the extension is won */
bool sent[TOKENS];       /* an extension was sent */
bool met[CLIENTS];       /* a client that it excludes was granted a lease since it began */
#endif
#if UPGRADE
bool writes[CLIENTS];    /* its lease was upgraded */
bool back[TOKENS];       /* a message that undoes an upgrade was sent */
#define SHARES(c) (reads[slot[c]] && !writes[c])
#else
#define SHARES(c) reads[slot[c]]
#endif
byte i, j; int x;

#define CURRENT(t) (phase[OWNER(t)] != IDLE && slot[OWNER(t)] == (t))
#define NAME(c) ('A' + (c))
#define VALID(c) (phase[c] >= HOLDING && left[c] > 0)

inline sort() {
	i = 0;
	do
	:: i >= N - 1 -> break
	:: i < N - 1 && col[i] < col[i + 1] ->
		printf("swap %d\n", i + 1);
		x = col[i]; col[i] = col[i + 1]; col[i + 1] = x;
		i = (i > 0 -> i - 1 : 0)
	:: else -> i++
	od;
	i = 0; x = 0
}

/* --- what must hold --- */
#define EXCLUDE(c, o) (!SHARES(c) || !SHARES(o))
inline sound(c) {
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && VALID(i) && EXCLUDE(c, i) ->
			printf("  ! %c and %c both hold it, and one of them alone\n", NAME(c), NAME(i)); assert(false)
		:: else
		fi;
		i++
	od;
	i = 0
}
inline meet(c) {
#if EXTEND
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && phase[i] >= HOLDING && EXCLUDE(c, i) -> met[i] = true
		:: else
		fi;
		i++
	od;
	i = 0;
#endif
	skip
}
inline forget_votes(c) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> SET_VOTED(i, slot[c], 0); i++
	od;
	i = 0
}

/* --- a client --- */
#define TRACE(n, t) (LIFE(n, t) > 0 || FLY(n, t))
#if N == 3
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t))
#else
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t) && !TRACE(3, t) && !TRACE(4, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t) + VOTED(3, t) + VOTED(4, t))
#endif

inline begin(c, t, r) {
	d_step {
		phase[c] == IDLE && FORGOTTEN(t) && (t == c * SLOTS || !FORGOTTEN(c * SLOTS)) ->
		phase[c] = ASKING; slot[c] = t; left[c] = TTL - ALLOWANCE; reads[t] = r;
		if
		:: r -> printf("%c: begins, asks all nodes to read\n", NAME(c))
		:: else -> printf("%c: begins, asks all nodes to write\n", NAME(c))
		fi;
		i = 0;
		do
		:: i >= N -> break
		:: else -> SET_FLY(i, t, 1); SET_VOTED(i, t, 0); i++
		od;
		i = 0;
#if EXTEND
		sent[t] = false;
#endif
#if UPGRADE
		back[t] = false;
#endif
		sort()
	}
}
inline win(c) {
	d_step {
		phase[c] == ASKING && left[c] > 0 && VOTES(slot[c]) >= QUORUM ->
		printf("%c: counts a quorum, holds it for %d\n", NAME(c), left[c]);
		sound(c);
		meet(c);
#if EXTEND
		met[c] = false;
#endif
		phase[c] = HOLDING;
		forget_votes(c);
		sort()
	}
}
inline finish(c) {
	d_step {
		phase[c] != IDLE ->
		if
		:: phase[c] == ASKING -> printf("%c: gives up\n", NAME(c))
		:: else -> printf("%c: ends its lease\n", NAME(c))
		fi;
		forget_votes(c);
		phase[c] = IDLE; left[c] = 0; slot[c] = 0;
#if EXTEND
		fresh[c] = 0; met[c] = false;
#endif
#if UPGRADE
		writes[c] = false;
#endif
		sort()
	}
}

/* --- a node --- */
#define BARS(n, t, o) (LIFE(n, o) > 0 && (o) != (t) && !(reads[t] && (reads[o] && !LIFTED(n, o) || LAX)))
#if TOKENS == 2
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0))
#define GIVES(n, t) (!BARS(n, t, 0) && !BARS(n, t, 1))
#elif TOKENS == 3
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0) + (LIFE(n, 2) > 0))
#define GIVES(n, t) (!BARS(n, t, 0) && !BARS(n, t, 1) && !BARS(n, t, 2))
#else
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0) + (LIFE(n, 2) > 0) + (LIFE(n, 3) > 0))
#define GIVES(n, t) (!BARS(n, t, 0) && !BARS(n, t, 1) && !BARS(n, t, 2) && !BARS(n, t, 3))
#endif

inline arrives(n, t) {
	d_step {
		FLY(n, t) && GIVES(n, t) ->
		SET_FLY(n, t, 0);
		SET_LIFE(n, t, TTL + DRIFT);
		if
		:: CURRENT(t) && phase[OWNER(t)] == ASKING && QUAR(n) == 0 ->
			SET_VOTED(n, t, 1);
			printf("%c: node %d grants it\n", NAME(OWNER(t)), (n) + 1)
		:: CURRENT(t) && phase[OWNER(t)] == ASKING && QUAR(n) > 0 ->
			printf("%c: node %d grants it, without a vote\n", NAME(OWNER(t)), (n) + 1)
		:: else -> printf("%c: node %d grants it, but late\n", NAME(OWNER(t)), (n) + 1)
		fi;
		sort()
	}
}
inline refused(n, t) {   /* or lost */
	d_step {
		FLY(n, t) ->
		SET_FLY(n, t, 0);
		printf("%c: node %d refuses, or the message is lost\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
inline released(n, t) {
	d_step {
		!CURRENT(t) && LIFE(n, t) > 0 ->
		SET_LIFE(n, t, 0); SET_LIFTED(n, t, 0);
		printf("%c: its release arrives at node %d\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
#if COUNTING
inline takes_one(n, t, o) {   /* the release of a reader that this node refused, or never asked */
	d_step {
		reads[t] && !CURRENT(t) && reads[o] && o != t && LIFE(n, o) > 0 ->
		SET_LIFE(n, o, 0);
		printf("%c: its release arrives at node %d, and takes one of %c away\n", NAME(OWNER(t)), (n) + 1, NAME(OWNER(o)));
		sort()
	}
}
#endif
inline expires_early(n, t) {
	d_step {
		DRIFT > 0 && LIFE(n, t) > 0 && LIFE(n, t) <= 2 * DRIFT ->
		SET_LIFE(n, t, 0);
		printf("%c: its key on node %d expires early\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
inline crashes(n) {
	d_step {
		CRASH && HELD_AT(n) > 0 ->
		printf("   node %d forgets everything\n", (n) + 1);
		i = 0;
		do
		:: i >= TOKENS -> break
		:: else -> SET_LIFE(n, i, 0); i++
		od;
		i = 0;
		SET_QUAR(n, QUARANTINE);
		sort()
	}
}
inline tick() {
	d_step {
		printf("   a tick passes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			j = 0;
			do
			:: j >= TOKENS -> break
			:: else ->
				if
				:: LIFE(i, j) > 0 -> x = LIFE(i, j) - 1; SET_LIFE(i, j, x)
				:: else
				fi;
				if
				:: LIFE(i, j) == 0 -> SET_LIFTED(i, j, 0)
				:: else
				fi;
				j++
			od;
			if
			:: QUAR(i) > 0 -> x = QUAR(i) - 1; SET_QUAR(i, x)
			:: else
			fi;
			i++
		od;
		i = 0; j = 0;
		do
		:: i >= CLIENTS -> break
		:: else ->
			left[i] = (left[i] > 0 -> left[i] - 1 : 0);
#if EXTEND
			fresh[i] = (fresh[i] > 0 -> fresh[i] - 1 : 0);
#endif
			i++
		od;
		i = 0; x = 0;
		sort()
	}
}

/* --- extensions --- */
#if EXTEND
inline extend(c) {
	d_step {
		(phase[c] == HOLDING || phase[c] == EXTENDING) && left[c] > 0 ->
		phase[c] = EXTENDING; fresh[c] = TTL - ALLOWANCE; sent[slot[c]] = true;
		forget_votes(c);
		printf("%c: sends EXTEND\n", NAME(c));
		sort()
	}
}
#define AWAITED(n, t) (CURRENT(t) && phase[OWNER(t)] == EXTENDING && !VOTED(n, t))
inline extends(n, t) {
	d_step {
		sent[t] && LIFE(n, t) > 0 && (AWAITED(n, t) || LIFE(n, t) < TTL + DRIFT) ->
		SET_LIFE(n, t, TTL + DRIFT);
		if
		:: CURRENT(t) && phase[OWNER(t)] == EXTENDING && QUAR(n) == 0 -> SET_VOTED(n, t, 1)
		:: else
		fi;
		printf("%c: node %d extends\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
inline extended(c) {
	d_step {
		phase[c] == EXTENDING && VOTES(slot[c]) >= QUORUM && left[c] > 0 && fresh[c] > 0 ->
		phase[c] = HOLDING; left[c] = fresh[c]; fresh[c] = 0;
		printf("%c: counts a quorum, is extended\n", NAME(c));
		sound(c);
		if
		:: met[c] -> printf("  ! another client was granted it within %c's lease\n", NAME(c)); assert(false)
		:: else
		fi;
		forget_votes(c);
		sort()
	}
}
#endif

/* --- a reader that becomes the writer --- */
#if UPGRADE
inline upgrade(c) {
	d_step {
		phase[c] == HOLDING && SHARES(c) && left[c] > 0 ->
		phase[c] = UPGRADING;
		forget_votes(c);
		printf("%c: asks all nodes to make it the writer\n", NAME(c));
		sort()
	}
}
inline lifts(n, t) {
	d_step {
		CURRENT(t) && phase[OWNER(t)] == UPGRADING && LIFE(n, t) > 0 && HELD_AT(n) == 1 && !VOTED(n, t) ->
		SET_LIFTED(n, t, 1); SET_VOTED(n, t, 1);
		printf("%c: node %d has no other, and makes it the writer\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
inline upgraded(c) {
	d_step {
		phase[c] == UPGRADING && left[c] > 0 && VOTES(slot[c]) >= QUORUM ->
		phase[c] = HOLDING; writes[c] = true;
		printf("%c: counts a quorum, is the writer\n", NAME(c));
		sound(c);
		forget_votes(c);
		sort()
	}
}
inline not_upgraded(c) {
	d_step {
		UPGRADE < 3 && phase[c] == UPGRADING ->
		phase[c] = HOLDING; back[slot[c]] = true;
		forget_votes(c);
		printf("%c: counts no quorum, undoes it at all nodes, and still reads\n", NAME(c));
		sort()
	}
}
inline undone(n, t) {
	d_step {
		back[t] && LIFTED(n, t) ->
		SET_LIFTED(n, t, 0);
#if UPGRADE == 1
		SET_LIFE(n, t, 0);
		printf("%c: node %d deletes its key\n", NAME(OWNER(t)), (n) + 1);
#else
		printf("%c: node %d makes it a reader again\n", NAME(OWNER(t)), (n) + 1);
#endif
		sort()
	}
}
#endif

/* --- everything --- */
#if CLIENTS == 2
#define EACH_CLIENT(a) :: a(0) :: a(1)
#else
#define EACH_CLIENT(a) :: a(0) :: a(1) :: a(2)
#endif
#if N == 3
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2)
#else
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t) :: a(3, t) :: a(4, t)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2) :: a(3) :: a(4)
#endif
#if TOKENS == 2
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1)
#elif TOKENS == 3
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1) ON_EACH(a, 2)
#else
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1) ON_EACH(a, 2) ON_EACH(a, 3)
#endif
#if SLOTS == 1
#define BEGINS(c) :: begin(c, c, 0) :: begin(c, c, 1)
#else
#define BEGINS(c) :: begin(c, (c) * 2, 0) :: begin(c, (c) * 2, 1) :: begin(c, (c) * 2 + 1, 0) :: begin(c, (c) * 2 + 1, 1)
#endif

active proctype world() {
	do
	BEGINS(0) BEGINS(1)
#if CLIENTS > 2
	BEGINS(2)
#endif
	EACH_CLIENT(finish)
	EACH_MESSAGE(refused)
	EACH_MESSAGE(released)
#if DRIFT
	EACH_MESSAGE(expires_early)
#endif
#if CRASH
	EACH_NODE(crashes)
#endif
	EACH_MESSAGE(arrives)
	EACH_CLIENT(win)
#if COUNTING
	:: takes_one(0, 0, 1) :: takes_one(1, 0, 1) :: takes_one(2, 0, 1)
	:: takes_one(0, 1, 0) :: takes_one(1, 1, 0) :: takes_one(2, 1, 0)
#if TOKENS > 2
	:: takes_one(0, 0, 2) :: takes_one(1, 0, 2) :: takes_one(2, 0, 2)
	:: takes_one(0, 1, 2) :: takes_one(1, 1, 2) :: takes_one(2, 1, 2)
#endif
#endif
#if EXTEND
	EACH_CLIENT(extend)
	EACH_CLIENT(extended)
	EACH_MESSAGE(extends)
#endif
#if UPGRADE
	EACH_CLIENT(upgrade)
	EACH_CLIENT(upgraded)
	EACH_CLIENT(not_upgraded)
	EACH_MESSAGE(lifts)
	EACH_MESSAGE(undone)
#endif
	:: tick()
	od
}

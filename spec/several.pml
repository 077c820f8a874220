/* Locks on several keys at once, for the model checker spin.
 *
 * Every attempt asks for a set of two keys: the first, the second, or both.  A node grants a token all of
 * its keys or none.  Two sets conflict if they share a key.  The reductions are those of redlock.pml:
 * time is relative, clocks of nodes err by DRIFT, a message arrives at any later moment or is lost, a
 * release of a token that is over arrives at any moment and any number of times, a token without
 * traces is as good as a fresh one, and nodes are interchangeable, so their columns are sorted.
 *
 * What must hold: no two clients with sets that share a key have a valid lease at the same time; and when
 * an extension is granted, no client with a conflicting set was granted its own since the lease began.
 */
#ifndef N
#define N 3
#endif
#define QUORUM (N / 2 + 1)
#ifndef CLIENTS
#define CLIENTS 2
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
#ifndef PARTIAL
#define PARTIAL 0        /* 1: a node looks at the first key only, and grants all */
#endif

/* One token for each client. A node's column: for each token what is left of its life (3 bits), a request
 * under way, a vote of the present round; and the node's quarantine. */
#define W 5
#define LIFE(n, t) ((col[n] >> ((t) * W)) & 7)
#define FLY(n, t) ((col[n] >> ((t) * W + 3)) & 1)
#define VOTED(n, t) ((col[n] >> ((t) * W + 4)) & 1)
#define QUAR(n) ((col[n] >> 28) & 7)
#define PUT(n, shift, mask, v) col[n] = (col[n] & ~((mask) << (shift))) | ((v) << (shift))
#define SET_LIFE(n, t, v) PUT(n, (t) * W, 7, v)
#define SET_FLY(n, t, v) PUT(n, (t) * W + 3, 1, v)
#define SET_VOTED(n, t, v) PUT(n, (t) * W + 4, 1, v)
#define SET_QUAR(n, v) PUT(n, 28, 7, v)

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define EXTENDING 3

int col[N];
byte keys[CLIENTS];      /* bit i: key i; of the token's present or latest attempt */
byte phase[CLIENTS];
byte left[CLIENTS];      /* of the validity */
#if EXTEND
byte fresh[CLIENTS];     /* of the validity that an extension would give */
bool sent[CLIENTS];      /* an extension was sent, and may arrive */
bool met[CLIENTS];       /* a client with a conflicting set was granted it since the lease began */
#endif
byte i, j; int x;

#define NAME(c) ('A' + (c))
#define VALID(c) (phase[c] >= HOLDING && left[c] > 0)
#define CONFLICT(a, b) ((keys[a] & keys[b]) != 0)
#if PARTIAL
#define REFUSED_FOR(t, o) ((keys[o] & keys[t] & 1) != 0)
#else
#define REFUSED_FOR(t, o) CONFLICT(t, o)
#endif

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
inline sound(c) {
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && VALID(i) && CONFLICT(i, c) ->
			printf("  ! %c and %c both have a valid lease on one key\n", NAME(c), NAME(i));
			assert(false)
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
		:: i != c && phase[i] >= HOLDING && CONFLICT(i, c) -> met[i] = true
		:: else
		fi;
		i++
	od;
	i = 0;
	met[c] = false;
#endif
	skip
}
inline forget_votes(c) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> SET_VOTED(i, c, 0); i++
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

inline begin(c, set) {
	d_step {
		phase[c] == IDLE && FORGOTTEN(c) ->
		phase[c] = ASKING; left[c] = TTL - ALLOWANCE; keys[c] = set;
		if
		:: set == 3 -> printf("%c: asks all nodes for both keys\n", NAME(c))
		:: else -> printf("%c: asks all nodes for key %d\n", NAME(c), set)
		fi;
		i = 0;
		do
		:: i >= N -> break
		:: else -> SET_FLY(i, c, 1); SET_VOTED(i, c, 0); i++
		od;
		i = 0;
#if EXTEND
		sent[c] = false;
#endif
		sort()
	}
}
inline win(c) {
	d_step {
		phase[c] == ASKING && VOTES(c) >= QUORUM && left[c] > 0 ->
		printf("%c: counts a quorum, holds the lock for %d ticks\n", NAME(c), left[c]);
		sound(c);
		meet(c);
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
		phase[c] = IDLE; left[c] = 0;
#if EXTEND
		fresh[c] = 0; met[c] = false;
#endif
		sort()
	}
}

/* --- a node --- */
#define IN_WAY(n, t, o) ((o) != (t) && LIFE(n, o) > 0 && REFUSED_FOR(t, o))
#if CLIENTS == 2
#define ADMITS(n, t) (!IN_WAY(n, t, 0) && !IN_WAY(n, t, 1))
#else
#define ADMITS(n, t) (!IN_WAY(n, t, 0) && !IN_WAY(n, t, 1) && !IN_WAY(n, t, 2))
#endif
inline arrives(n, t) {
	d_step {
		FLY(n, t) && ADMITS(n, t) ->
		SET_FLY(n, t, 0);
		SET_LIFE(n, t, TTL + DRIFT);
		if
		:: phase[t] == ASKING && QUAR(n) == 0 -> SET_VOTED(n, t, 1); printf("%c: node %d grants\n", NAME(t), (n) + 1)
		:: phase[t] == ASKING && QUAR(n) > 0 -> printf("%c: node %d sets its keys, and casts no vote\n", NAME(t), (n) + 1)
		:: else -> printf("%c: node %d sets its keys late, the attempt is over\n", NAME(t), (n) + 1)
		fi;
		sort()
	}
}
inline refused(n, t) {
	d_step {
		FLY(n, t) ->
		SET_FLY(n, t, 0);
		printf("%c: node %d refuses, or the message is lost\n", NAME(t), (n) + 1);
		sort()
	}
}
inline released(n, t) {
	d_step {
		phase[t] == IDLE && LIFE(n, t) > 0 ->
		SET_LIFE(n, t, 0);
		printf("%c: its release arrives at node %d\n", NAME(t), (n) + 1);
		sort()
	}
}
inline expires_early(n, t) {
	d_step {
		LIFE(n, t) > 0 && LIFE(n, t) <= 2 * DRIFT ->
		SET_LIFE(n, t, 0);
		printf("%c: its keys on node %d expire early\n", NAME(t), (n) + 1);
		sort()
	}
}
inline crashes(n) {
	d_step {
		(col[n] & 7) + ((col[n] >> W) & 7) + ((col[n] >> (2 * W)) & 7) > 0 ->
		printf("   node %d forgets all keys\n", (n) + 1);
		i = 0;
		do
		:: i >= CLIENTS -> break
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
			:: j >= CLIENTS -> break
			:: else ->
				if
				:: LIFE(i, j) > 0 -> x = LIFE(i, j) - 1; SET_LIFE(i, j, x)
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
		phase[c] = EXTENDING; fresh[c] = TTL - ALLOWANCE; sent[c] = true;
		forget_votes(c);
		printf("%c: sends an extension to all nodes\n", NAME(c));
		sort()
	}
}
inline extends(n, t) {
	d_step {
		sent[t] && LIFE(n, t) > 0 && ((phase[t] == EXTENDING && !VOTED(n, t)) || LIFE(n, t) < TTL + DRIFT) ->
		SET_LIFE(n, t, TTL + DRIFT);
		if
		:: phase[t] == EXTENDING && QUAR(n) == 0 -> SET_VOTED(n, t, 1)
		:: else
		fi;
		printf("%c: node %d extends\n", NAME(t), (n) + 1);
		sort()
	}
}
inline extended(c) {
	d_step {
		phase[c] == EXTENDING && VOTES(c) >= QUORUM && left[c] > 0 && fresh[c] > 0 ->
		phase[c] = HOLDING; left[c] = fresh[c]; fresh[c] = 0;
		printf("%c: counts a quorum, holds the lock for %d ticks\n", NAME(c), left[c]);
		sound(c);
		if
		:: met[c] -> printf("  ! a conflicting set was granted within the lease of %c\n", NAME(c)); assert(false)
		:: else
		fi;
		forget_votes(c);
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
#if CLIENTS == 2
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1)
#else
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1) ON_EACH(a, 2)
#endif
#define BEGINS(c) :: begin(c, 1) :: begin(c, 2) :: begin(c, 3)

active proctype world() {
	do
	BEGINS(0) BEGINS(1)
#if CLIENTS > 2
	BEGINS(2)
#endif
	EACH_CLIENT(win)
	EACH_CLIENT(finish)
	EACH_MESSAGE(arrives)
	EACH_MESSAGE(refused)
	EACH_MESSAGE(released)
#if DRIFT
	EACH_MESSAGE(expires_early)
#endif
#if CRASH
	EACH_NODE(crashes)
#endif
#if EXTEND
	EACH_CLIENT(extend)
	EACH_CLIENT(extended)
	EACH_MESSAGE(extends)
#endif
	:: tick()
	od
}

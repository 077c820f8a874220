/* Permits of a semaphore, for the model checker spin: K clients may hold at once.
 *
 * A node gives a token one of K numbered permits that is free there, any of them: so every order in
 * which nodes try them is covered.  An attempt is won if a quorum has given the same one.  What other
 * nodes have given is released while the lease is held.  With COUNTED, a node admits up to K tokens, and a
 * quorum of nodes that do so wins.  The reductions are those of redlock.pml: time is relative, clocks of
 * nodes err by DRIFT, a message arrives at any later moment or is lost, a release arrives at any moment
 * and any number of times, a token without traces is as good as a fresh one, and nodes are
 * interchangeable, so their columns are sorted.
 *
 * What must hold: no more than K clients have a valid lease at the same time, and no two of them the same
 * permit; and when an extension is granted, no client was granted this permit since the lease began.
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
#ifndef K
#define K 2              /* permits: 1 or 2 */
#endif
#ifndef COUNTED
#define COUNTED 0        /* 1: nodes count tokens, and give no numbers */
#endif
#ifndef ANY_PLACE
#define ANY_PLACE 0      /* 1: a quorum of nodes has given some permit, perhaps different ones */
#endif

#define TOKENS (CLIENTS * SLOTS)
#define OWNER(t) ((t) / SLOTS)
/* A node's column: for each token what is left of its life (3 bits), a request under way, a vote of the
 * present round, and the permit; and the node's quarantine. */
#define W 6
#define LIFE(n, t) ((col[n] >> ((t) * W)) & 7)
#define FLY(n, t) ((col[n] >> ((t) * W + 3)) & 1)
#define VOTED(n, t) ((col[n] >> ((t) * W + 4)) & 1)
#define PERMIT(n, t) ((col[n] >> ((t) * W + 5)) & 1)
#define QUAR(n) ((col[n] >> 28) & 7)
#define PUT(n, shift, mask, v) col[n] = (col[n] & ~((mask) << (shift))) | ((v) << (shift))
#define SET_LIFE(n, t, v) PUT(n, (t) * W, 7, v)
#define SET_FLY(n, t, v) PUT(n, (t) * W + 3, 1, v)
#define SET_VOTED(n, t, v) PUT(n, (t) * W + 4, 1, v)
#define SET_PERMIT(n, t, v) PUT(n, (t) * W + 5, 1, v)
#define SET_QUAR(n, v) PUT(n, 28, 7, v)

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define EXTENDING 3

int col[N];
byte phase[CLIENTS];
byte slot[CLIENTS];      /* its present token */
byte left[CLIENTS];      /* of the validity */
byte permit[CLIENTS];    /* the one that it has won */
#if EXTEND
byte fresh[CLIENTS];     /* of the validity, if the extension is won */
bool sent[TOKENS];       /* an extension was sent */
bool met[CLIENTS];       /* another client was granted the permit since the lease began */
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
inline sound(c) {
	i = 0; j = 1;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && VALID(i) ->
			j++;
			if
			:: !COUNTED && permit[i] == permit[c] ->
				printf("  ! %c and %c both hold permit %d\n", NAME(c), NAME(i), permit[c]); assert(false)
			:: else
			fi
		:: else
		fi;
		i++
	od;
	if
	:: j > K -> printf("  ! %d hold, %d may\n", j, K); assert(false)
	:: else
	fi;
	i = 0; j = 0
}
inline meet(c) {
#if EXTEND
	i = 0;
	do
	:: i >= CLIENTS -> break
	:: else ->
		if
		:: i != c && phase[i] >= HOLDING && permit[i] == permit[c] -> met[i] = true
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
#define VOTE_FOR(n, t, p) (VOTED(n, t) && PERMIT(n, t) == (p))
#if N == 3
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t))
#define VOTES_FOR(t, p) (VOTE_FOR(0, t, p) + VOTE_FOR(1, t, p) + VOTE_FOR(2, t, p))
#else
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t) && !TRACE(3, t) && !TRACE(4, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t) + VOTED(3, t) + VOTED(4, t))
#define VOTES_FOR(t, p) (VOTE_FOR(0, t, p) + VOTE_FOR(1, t, p) + VOTE_FOR(2, t, p) + VOTE_FOR(3, t, p) + VOTE_FOR(4, t, p))
#endif
#if COUNTED || ANY_PLACE
#define WINS(c, p) (VOTES(slot[c]) >= QUORUM && (COUNTED -> (p) == 0 : VOTES_FOR(slot[c], p) > 0))
#else
#define WINS(c, p) (VOTES_FOR(slot[c], p) >= QUORUM)
#endif

inline begin(c, t) {
	d_step {
		phase[c] == IDLE && FORGOTTEN(t) && (t == c * SLOTS || !FORGOTTEN(c * SLOTS)) ->
		phase[c] = ASKING; slot[c] = t; left[c] = TTL - ALLOWANCE;
		printf("%c: begins, asks all nodes\n", NAME(c));
		i = 0;
		do
		:: i >= N -> break
		:: else -> SET_FLY(i, t, 1); SET_VOTED(i, t, 0); SET_PERMIT(i, t, 0); i++
		od;
		i = 0;
#if EXTEND
		sent[t] = false;
#endif
		sort()
	}
}
inline win(c, p) {
	d_step {
		phase[c] == ASKING && left[c] > 0 && WINS(c, p) ->
		permit[c] = p;
		printf("%c: counts a quorum, holds permit %d for %d\n", NAME(c), p, left[c]);
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
		phase[c] = IDLE; left[c] = 0; permit[c] = 0; slot[c] = 0;
#if EXTEND
		fresh[c] = 0; met[c] = false;
#endif
		sort()
	}
}

/* --- a node --- */
#if TOKENS == 2
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0))
#define FREE(n, p) (!TAKEN(n, 0, p) && !TAKEN(n, 1, p))
#elif TOKENS == 3
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0) + (LIFE(n, 2) > 0))
#define FREE(n, p) (!TAKEN(n, 0, p) && !TAKEN(n, 1, p) && !TAKEN(n, 2, p))
#else
#define HELD_AT(n) ((LIFE(n, 0) > 0) + (LIFE(n, 1) > 0) + (LIFE(n, 2) > 0) + (LIFE(n, 3) > 0))
#define FREE(n, p) (!TAKEN(n, 0, p) && !TAKEN(n, 1, p) && !TAKEN(n, 2, p) && !TAKEN(n, 3, p))
#endif
#define TAKEN(n, o, p) (LIFE(n, o) > 0 && PERMIT(n, o) == (p))
#if COUNTED
#define GIVES(n, p) ((p) == 0 && HELD_AT(n) < K)
#else
#define GIVES(n, p) FREE(n, p)
#endif

inline arrives(n, t, p) {
	d_step {
		FLY(n, t) && GIVES(n, p) ->
		SET_FLY(n, t, 0);
		SET_LIFE(n, t, TTL + DRIFT); SET_PERMIT(n, t, p);
		if
		:: CURRENT(t) && phase[OWNER(t)] == ASKING && QUAR(n) == 0 ->
			SET_VOTED(n, t, 1);
			printf("%c: node %d gives permit %d\n", NAME(OWNER(t)), (n) + 1, p)
		:: CURRENT(t) && phase[OWNER(t)] == ASKING && QUAR(n) > 0 ->
			printf("%c: node %d gives permit %d, without a vote\n", NAME(OWNER(t)), (n) + 1, p)
		:: else -> printf("%c: node %d gives permit %d, but late\n", NAME(OWNER(t)), (n) + 1, p)
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
		SET_LIFE(n, t, 0); SET_PERMIT(n, t, 0);
		printf("%c: its release arrives at node %d\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
inline stray_released(n, t) {   /* a permit that the lease is not on, while it is held */
	d_step {
		!COUNTED && CURRENT(t) && phase[OWNER(t)] >= HOLDING && LIFE(n, t) > 0 && PERMIT(n, t) != permit[OWNER(t)] ->
		SET_LIFE(n, t, 0); SET_PERMIT(n, t, 0);
		printf("%c: node %d frees what it gave besides\n", NAME(OWNER(t)), (n) + 1);
		sort()
	}
}
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

/* --- extensions, of the permit that was won --- */
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
#define IS_IT(n, t) (!CURRENT(t) || PERMIT(n, t) == permit[OWNER(t)])
inline extends(n, t) {
	d_step {
		sent[t] && LIFE(n, t) > 0 && IS_IT(n, t) && (AWAITED(n, t) || LIFE(n, t) < TTL + DRIFT) ->
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
		:: met[c] -> printf("  ! another client was granted the permit within %c's lease\n", NAME(c)); assert(false)
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
#define EACH_WIN(a, p) :: a(0, p) :: a(1, p)
#else
#define EACH_CLIENT(a) :: a(0) :: a(1) :: a(2)
#define EACH_WIN(a, p) :: a(0, p) :: a(1, p) :: a(2, p)
#endif
#if N == 3
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t)
#define AT_EACH(a, t, p) :: a(0, t, p) :: a(1, t, p) :: a(2, t, p)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2)
#else
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t) :: a(3, t) :: a(4, t)
#define AT_EACH(a, t, p) :: a(0, t, p) :: a(1, t, p) :: a(2, t, p) :: a(3, t, p) :: a(4, t, p)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2) :: a(3) :: a(4)
#endif
#if TOKENS == 2
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1)
#define EACH_GRANT(a, p) AT_EACH(a, 0, p) AT_EACH(a, 1, p)
#elif TOKENS == 3
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1) ON_EACH(a, 2)
#define EACH_GRANT(a, p) AT_EACH(a, 0, p) AT_EACH(a, 1, p) AT_EACH(a, 2, p)
#else
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1) ON_EACH(a, 2) ON_EACH(a, 3)
#define EACH_GRANT(a, p) AT_EACH(a, 0, p) AT_EACH(a, 1, p) AT_EACH(a, 2, p) AT_EACH(a, 3, p)
#endif
#if SLOTS == 1
#define BEGINS(c) :: begin(c, c)
#else
#define BEGINS(c) :: begin(c, (c) * 2) :: begin(c, (c) * 2 + 1)
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
	EACH_MESSAGE(stray_released)
#if DRIFT
	EACH_MESSAGE(expires_early)
#endif
#if CRASH
	EACH_NODE(crashes)
#endif
	EACH_GRANT(arrives, 0)
	EACH_WIN(win, 0)
#if K > 1 && !COUNTED
	EACH_GRANT(arrives, 1)
	EACH_WIN(win, 1)
#endif
#if EXTEND
	EACH_CLIENT(extend)
	EACH_CLIENT(extended)
	EACH_MESSAGE(extends)
#endif
	:: tick()
	od
}

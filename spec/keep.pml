/* Keeping a lock as done, for the model checker spin: "at most once for KEPT ticks".
 *
 * A holder asks all nodes to replace its token by a mark, which lives KEPT ticks there.  If a quorum has
 * done so within the validity, the work counts as done.  The reductions are those of redlock.pml: time is
 * relative, clocks of nodes err by DRIFT, a message arrives at any later moment or is lost, a release of
 * a token that is over arrives at any moment and any number of times, a token without traces is as good
 * as a fresh one, and nodes are interchangeable, so their columns are sorted.
 *
 * What must hold: no two clients have a valid lease at the same time; no client is granted the lock for
 * KEPT ticks, less the allowance, after a keep that was counted was sent; and when it is counted, no
 * client was granted the lock since its lease began.
 */
#ifndef N
#define N 3
#endif
#define QUORUM (N / 2 + 1)
#define CLIENTS 2
#ifndef TTL
#define TTL 2
#endif
#ifndef KEPT
#define KEPT 2           /* TTL is max_ttl: beyond it the quarantine does not cover the mark */
#endif
#ifndef DRIFT
#define DRIFT 0          /* in how many ticks a node's clock errs */
#endif
#ifndef ALLOWANCE
#define ALLOWANCE DRIFT  /* what a client subtracts for it */
#endif
#ifndef CRASHES
#define CRASHES 0        /* so many times a node forgets all keys; 9: any number of times */
#endif
#ifndef QUARANTINE
#define QUARANTINE TTL   /* for so many ticks after that it casts no vote */
#endif
#ifndef EVERYWHERE
#define EVERYWHERE 0     /* 1: it counts as done when all nodes have the mark */
#endif
#ifndef COMPARE
#define COMPARE 1        /* 0: a node sets the mark whatever it has */
#endif
#ifndef IN_TIME
#define IN_TIME 1        /* 0: a quorum counts also after the validity */
#endif
#ifndef MARK_IS_TOKEN
#define MARK_IS_TOKEN 0  /* 1: the token stays and lives longer, so a late release deletes it */
#endif

/* A node's column: what the key has (0 nothing, a token, or a mark), its life; for each token a SET and a
 * keep under way, and a vote of the present round; and the node's quarantine. */
#define HAS(n) (col[n] & 7)
#define LIFE(n) ((col[n] >> 3) & 7)
#define FLY(n, t) ((col[n] >> (6 + 3 * (t))) & 1)
#define KEEPS(n, t) ((col[n] >> (7 + 3 * (t))) & 1)
#define VOTED(n, t) ((col[n] >> (8 + 3 * (t))) & 1)
#define QUAR(n) ((col[n] >> 12) & 7)
#define TOKEN(t) ((t) + 1)
#define MARK(t) ((t) + 3)
#define PUT(n, shift, mask, v) col[n] = (col[n] & ~((mask) << (shift))) | ((v) << (shift))
#define SET_KEY(n, value, life) PUT(n, 0, 63, (value) | ((life) << 3))
#define SET_FLY(n, t, v) PUT(n, 6 + 3 * (t), 1, v)
#define SET_KEEPS(n, t, v) PUT(n, 7 + 3 * (t), 1, v)
#define SET_VOTED(n, t, v) PUT(n, 8 + 3 * (t), 1, v)
#define SET_QUAR(n, v) PUT(n, 12, 7, v)

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define KEEPING 3

int col[N];
byte phase[CLIENTS];
byte left[CLIENTS];      /* of the validity */
byte pending[CLIENTS];   /* what a keep under way promises, if it is counted */
byte promised[CLIENTS];  /* no client is granted the lock for so long */
bool met[CLIENTS];       /* another client was granted the lock since the lease began */
byte crashed;
byte i, j; int x;

#define NAME(c) ('A' + (c))
#define VALID(c) (phase[c] >= HOLDING && left[c] > 0)
#define TRACE(n, t) (HAS(n) == TOKEN(t) || HAS(n) == MARK(t) || FLY(n, t) || KEEPS(n, t))
#if N == 3
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t))
#else
#define FORGOTTEN(t) (!TRACE(0, t) && !TRACE(1, t) && !TRACE(2, t) && !TRACE(3, t) && !TRACE(4, t))
#define VOTES(t) (VOTED(0, t) + VOTED(1, t) + VOTED(2, t) + VOTED(3, t) + VOTED(4, t))
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
inline forget_votes(c) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> SET_VOTED(i, c, 0); i++
	od;
	i = 0
}
inline over(c) {
	forget_votes(c);
	phase[c] = IDLE; left[c] = 0; pending[c] = 0; met[c] = false
}

/* --- what must hold --- */
inline granted_alone(c) {
	if
	:: VALID(1 - (c)) -> printf("  ! %c and %c both have a valid lease\n", NAME(c), NAME(1 - (c))); assert(false)
	:: else
	fi;
	if
	:: promised[0] > 0 || promised[1] > 0 -> printf("  ! done, and for so long no client may be granted it\n"); assert(false)
	:: else
	fi;
	met[1 - (c)] = (phase[1 - (c)] >= HOLDING)
}

/* --- a client --- */
inline begin(c) {
	d_step {
		phase[c] == IDLE && FORGOTTEN(c) ->
		phase[c] = ASKING; left[c] = TTL - ALLOWANCE;
		printf("%c: begins, asks all nodes\n", NAME(c));
		i = 0;
		do
		:: i >= N -> break
		:: else -> SET_FLY(i, c, 1); SET_VOTED(i, c, 0); i++
		od;
		i = 0;
		sort()
	}
}
inline win(c) {
	d_step {
		phase[c] == ASKING && left[c] > 0 && VOTES(c) >= QUORUM ->
		printf("%c: counts a quorum, holds for %d\n", NAME(c), left[c]);
		granted_alone(c);
		phase[c] = HOLDING; met[c] = false;
		forget_votes(c);
		sort()
	}
}
inline keep(c) {         /* also again */
	d_step {
		phase[c] >= HOLDING && left[c] > 0 ->
		if
		:: phase[c] == HOLDING -> pending[c] = KEPT - ALLOWANCE
		:: else
		fi;
		phase[c] = KEEPING;
		printf("%c: sends KEEP to all nodes\n", NAME(c));
		i = 0;
		do
		:: i >= N -> break
		:: else -> SET_KEEPS(i, c, 1); SET_VOTED(i, c, 0); i++
		od;
		i = 0;
		sort()
	}
}
inline kept(c) {
	d_step {
		phase[c] == KEEPING && (left[c] > 0 || !IN_TIME) && VOTES(c) >= (EVERYWHERE -> N : QUORUM) ->
		printf("%c: counts a quorum, it is done for %d more\n", NAME(c), pending[c]);
		if
		:: VALID(1 - (c)) || met[c] -> printf("  ! %c was granted the lock meanwhile\n", NAME(1 - (c))); assert(false)
		:: else
		fi;
		promised[c] = pending[c];
		over(c);
		sort()
	}
}
inline finish(c) {
	d_step {
		phase[c] != IDLE ->
		printf("%c: gives up, or ends its lease\n", NAME(c));
		over(c);
		sort()
	}
}

/* --- a node --- */
inline arrives(n, t) {
	d_step {
		FLY(n, t) && HAS(n) == 0 ->
		SET_FLY(n, t, 0);
		SET_KEY(n, TOKEN(t), TTL + DRIFT);
		if
		:: phase[t] == ASKING && QUAR(n) == 0 ->
			SET_VOTED(n, t, 1);
			printf("%c: node %d grants\n", NAME(t), (n) + 1)
		:: else -> printf("%c: node %d grants, without a vote\n", NAME(t), (n) + 1)
		fi;
		sort()
	}
}
inline refused(n, t) {   /* or lost */
	d_step {
		FLY(n, t) ->
		SET_FLY(n, t, 0);
		printf("%c: node %d refuses, or the message is lost\n", NAME(t), (n) + 1);
		sort()
	}
}
#define MAY_MARK(n, t) (HAS(n) == TOKEN(t) || HAS(n) == MARK(t) || !COMPARE)
inline marked(n, t) {
	d_step {
		KEEPS(n, t) && MAY_MARK(n, t) ->
		SET_KEEPS(n, t, 0);
		if
		:: HAS(n) != MARK(t) -> SET_KEY(n, MARK(t), KEPT + DRIFT)
		:: else
		fi;
		if
		:: phase[t] == KEEPING && QUAR(n) == 0 ->
			SET_VOTED(n, t, 1);
			printf("%c: node %d has the mark\n", NAME(t), (n) + 1)
		:: else -> printf("%c: node %d has the mark, without a vote\n", NAME(t), (n) + 1)
		fi;
		sort()
	}
}
inline keep_lost(n, t) { /* or refused */
	d_step {
		KEEPS(n, t) ->
		SET_KEEPS(n, t, 0);
		printf("%c: node %d sets no mark, or the message is lost\n", NAME(t), (n) + 1);
		sort()
	}
}
inline released(n, t) {
	d_step {
		phase[t] == IDLE && (HAS(n) == TOKEN(t) || (MARK_IS_TOKEN && HAS(n) == MARK(t))) ->
		SET_KEY(n, 0, 0);
		printf("%c: its release arrives at node %d\n", NAME(t), (n) + 1);
		sort()
	}
}
inline expires_early(n) {
	d_step {
		DRIFT > 0 && LIFE(n) > 0 && LIFE(n) <= 2 * DRIFT ->
		SET_KEY(n, 0, 0);
		printf("   a key on node %d expires early\n", (n) + 1);
		sort()
	}
}
inline crashes(n) {
	d_step {
		HAS(n) != 0 && crashed < CRASHES ->
		printf("   node %d forgets everything\n", (n) + 1);
		crashed = (CRASHES == 9 -> 0 : crashed + 1);
		SET_KEY(n, 0, 0);
		SET_QUAR(n, QUARANTINE);
		sort()
	}
}
inline down(value) {
	value = (value > 0 -> value - 1 : 0)
}
inline tick() {
	d_step {
		printf("   a tick passes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			if
			:: LIFE(i) == 1 -> SET_KEY(i, 0, 0)
			:: LIFE(i) > 1 -> x = HAS(i); j = LIFE(i) - 1; SET_KEY(i, x, j)
			:: else
			fi;
			if
			:: QUAR(i) > 0 -> x = QUAR(i) - 1; SET_QUAR(i, x)
			:: else
			fi;
			i++
		od;
		i = 0; j = 0;
		do
		:: i >= CLIENTS -> break
		:: else -> down(left[i]); down(pending[i]); down(promised[i]); i++
		od;
		i = 0; x = 0;
		sort()
	}
}

/* --- everything --- */
#define EACH_CLIENT(a) :: a(0) :: a(1)
#if N == 3
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2)
#else
#define ON_EACH(a, t) :: a(0, t) :: a(1, t) :: a(2, t) :: a(3, t) :: a(4, t)
#define EACH_NODE(a) :: a(0) :: a(1) :: a(2) :: a(3) :: a(4)
#endif
#define EACH_MESSAGE(a) ON_EACH(a, 0) ON_EACH(a, 1)

active proctype world() {
	do
	EACH_CLIENT(begin)
	EACH_CLIENT(win)
	EACH_CLIENT(keep)
	EACH_CLIENT(kept)
	EACH_CLIENT(finish)
	EACH_MESSAGE(arrives)
	EACH_MESSAGE(refused)
	EACH_MESSAGE(marked)
	EACH_MESSAGE(keep_lost)
	EACH_MESSAGE(released)
#if DRIFT
	EACH_NODE(expires_early)
#endif
#if CRASHES
	EACH_NODE(crashes)
#endif
	:: tick()
	od
}

/* The hand-over of the lock within one process, as a model for the checker spin: the releaser exchanges
 * its token for a fresh one on every node, by one command. Owns the exchange, broken connections and
 * pending releases; leaves time to redlock.pml, queues to wait.pml, and the cases to check.py.
 *
 * Three attempts: A acquires; B is the next in A's process and acquires by an exchange of A's token; X is
 * another process, which acquires as ever, any number of times. One process of the model takes one
 * action after another, in every possible order. The first line of an action is its guard.
 *
 * - A and B share a connection to each node, so their commands there keep their order, in `sent`.
 *   It may break at any time, a bounded number of times (BREAKS). The last command may have left it: the
 *   server carries it out late (`late`), although the connection is gone.
 * - Every acquire that was lost with its connection leaves a pending release of its token (and an
 *   exchange also one of the old token). It is sent again while it may still find a key: until `late` is
 *   empty. In the code that is one max_ttl after the acquire.
 * - A hung node is one that carries nothing out for long: any order of events has that.
 * - The keys of X are always released. No key expires: they would only hide what stays behind.
 */
#ifndef N
#define N 3
#endif
#ifndef QUORUM
#define QUORUM (N / 2 + 1)
#endif
#ifndef BREAKS
#define BREAKS 2         /* how many connections break */
#endif
/* what must fail */
#ifndef LEASE_OVER
#define LEASE_OVER 1     /* 0: A's lease is valid until the exchange has been won */
#endif
#ifndef ONLY_OLD
#define ONLY_OLD 1       /* 0: an exchange also replaces a token of another process */
#endif
#ifndef OLD_RELEASED
#define OLD_RELEASED 1   /* 0: an exchange that is lost with its connection leaves no release of the old token */
#endif
#ifndef NEW_RELEASED
#define NEW_RELEASED 1   /* 0: and none of the new one */
#endif
#ifndef FOLLOWS
#define FOLLOWS 1        /* 0: the exchange goes by another connection than the acquire of the old token */
#endif

#define NOTHING 0
#define OLD 1
#define NEW 2
#define FOREIGN 3

#define ACQUIRE 1        /* of the old token */
#define EXCHANGE 2
#define FREE_OLD 3
#define FREE_NEW 4

#define IDLE 0
#define ASKING 1
#define HOLDING 2
#define OVER 3

byte key[N];             /* node: whose token its key holds */
short sent[N];           /* node: commands under way in order, one decimal digit each; the lowest is first */
byte late[N];            /* node: a command of a connection that broke, may still be carried out */
byte apart[N];           /* node: an exchange by another connection (only if !FOLLOWS) */
byte pending[N];         /* node: (bits) 1: a release of the old token, 2: of the new one */
bool asked[N];           /* node: a SET of X is under way */
byte voted[N];           /* node: (bits) votes for A, B, X */
byte phase[3];
byte breaks;
byte i; short swapped;

#define A 0
#define B 1
#define X 2
#define NAME(c) (c == 2 -> 'C' : 'A' + (c))
#if N == 3
#define VOTES(c) (((voted[0] >> (c)) & 1) + ((voted[1] >> (c)) & 1) + ((voted[2] >> (c)) & 1))
#define EACH_NODE(action) :: action(0) :: action(1) :: action(2)
#define NONE(what) (what(0) && what(1) && what(2))
#else
#define VOTES(c) (((voted[0] >> (c)) & 1) + ((voted[1] >> (c)) & 1))
#define EACH_NODE(action) :: action(0) :: action(1)
#define NONE(what) (what(0) && what(1))
#endif
#define HEAD(n) (sent[n] % 10)
#define IN(c, s) ((s) % 10 == (c) || ((s) / 10) % 10 == (c) || ((s) / 100) % 10 == (c) || (s) / 1000 == (c))
#define SPACE(n) (sent[n] < 1000)

#define COLUMN(n) (((((key[n] * 8 + late[n]) * 4 + pending[n]) * 2 + asked[n]) * 8 + voted[n]) * 8 + apart[n])
#define SORTS(n, m) (COLUMN(n) < COLUMN(m) || (COLUMN(n) == COLUMN(m) && sent[n] < sent[m]))
#define SWAP(set, x, y) swapped = set[x]; set[x] = set[y]; set[y] = swapped
inline canonical() {     /* nodes are alike: a state and its mirror images are one */
	i = 0;
	do
	:: i >= N - 1 -> break
	:: i < N - 1 && SORTS(i, i + 1) ->
		printf("swap %d\n", i + 1);
		SWAP(key, i, i + 1); SWAP(sent, i, i + 1); SWAP(late, i, i + 1); SWAP(pending, i, i + 1);
		SWAP(asked, i, i + 1); SWAP(voted, i, i + 1); SWAP(apart, i, i + 1);
		i = (i > 0 -> i - 1 : 0)
	:: else -> i++
	od;
	i = 0; swapped = 0
}
inline send(n, command) {
	if
	:: sent[n] == 0 -> sent[n] = command
	:: sent[n] > 0 && sent[n] < 10 -> sent[n] = sent[n] + 10 * command
	:: sent[n] > 9 && sent[n] < 100 -> sent[n] = sent[n] + 100 * command
	:: else -> assert(sent[n] < 1000); sent[n] = sent[n] + 1000 * command
	fi
}
inline send_all(command) {
	i = 0;
	do
	:: i >= N -> break
	:: else -> send(i, command); i++
	od;
	i = 0
}
#define VALID(c) (phase[c] == HOLDING)
inline win(c) {
	d_step {
		phase[c] == ASKING && VOTES(c) >= QUORUM ->
		phase[c] = HOLDING;
		printf("%c: counts a quorum -> holds the lock\n", NAME(c));
		if
		:: VALID(A) + VALID(B) + VALID(X) > 1 ->
			printf("  ! two clients hold the lock\n"); assert(false)
		:: else
		fi;
		canonical()
	}
}
inline begin() {
	d_step {
		phase[A] == IDLE ->
		phase[A] = ASKING;
		printf("A: begins an attempt, sends SET to all nodes\n");
		send_all(ACQUIRE)
	}
}
inline exchange() {      /* A's lease ends, and B's begins where a quorum has exchanged the tokens */
	d_step {
		phase[A] == HOLDING && phase[B] == IDLE ->
		phase[A] = (LEASE_OVER -> OVER : HOLDING); phase[B] = ASKING;
		printf("B: sends the exchange of A's token for its own to all nodes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			if
			:: FOLLOWS -> send(i, EXCHANGE)
			:: else -> apart[i] = EXCHANGE
			fi;
			i++
		od;
		i = 0;
		canonical()
	}
}
inline end_late() {      /* the lease that was still valid: its end is noticed when the exchange was won */
	d_step {
		!LEASE_OVER && phase[A] == HOLDING && phase[B] == HOLDING ->
		phase[A] = OVER
	}
}
#define ROOMY(n) (sent[n] < 100)
inline finish() {        /* B ends its lease; or its round is lost: both tokens are released */
	d_step {
		(phase[B] == ASKING || phase[B] == HOLDING) && phase[A] == OVER && NONE(ROOMY) ->
		if
		:: phase[B] == ASKING ->
			printf("B: loses its round, releases both tokens on all nodes\n");
			send_all(FREE_OLD)
		:: else -> printf("B: releases on all nodes\n")
		fi;
		phase[B] = OVER;
		send_all(FREE_NEW);
		canonical()
	}
}
inline give_up() {       /* A: without an exchange */
	d_step {
		(phase[A] == ASKING || phase[A] == HOLDING) && phase[B] == IDLE ->
		printf("A: releases on all nodes\n");
		phase[A] = OVER;
		send_all(FREE_OLD);
		canonical()
	}
}
inline carried_out(n, command, has_reply) {
	if
	:: command == ACQUIRE && key[n] == NOTHING ->
		printf("A: SET on node %d -> granted\n", (n) + 1);
		key[n] = OLD;
		if
		:: phase[A] == ASKING && has_reply -> voted[n] = voted[n] | 1
		:: else
		fi
	:: command == EXCHANGE && (key[n] == NOTHING || key[n] == OLD || !ONLY_OLD) ->
		printf("B: exchange on node %d -> granted\n", (n) + 1);
		key[n] = NEW;
		if
		:: phase[B] == ASKING && has_reply -> voted[n] = voted[n] | 2
		:: else
		fi
	:: command == FREE_OLD && key[n] == OLD ->
		printf("A: release on node %d -> deletes the key\n", (n) + 1); key[n] = NOTHING
	:: command == FREE_NEW && key[n] == NEW ->
		printf("B: release on node %d -> deletes the key\n", (n) + 1); key[n] = NOTHING
	:: else -> skip
	fi
}
inline carry_out(n) {
	d_step {
		sent[n] > 0 ->
		swapped = HEAD(n);
		sent[n] = sent[n] / 10;
		carried_out(n, swapped, true);
		swapped = 0;
		canonical()
	}
}
inline carry_out_apart(n) {
	d_step {
		apart[n] > 0 ->
		apart[n] = 0;
		carried_out(n, EXCHANGE, true);
		canonical()
	}
}
inline broken(n) {       /* the first command may still arrive; what followed it is lost */
	d_step {
		breaks < BREAKS && sent[n] > 0 && late[n] == 0 ->
		breaks++;
		printf("   the connection to node %d breaks\n", (n) + 1);
		if
		:: IN(ACQUIRE, sent[n]) || (IN(EXCHANGE, sent[n]) && OLD_RELEASED) || IN(FREE_OLD, sent[n]) ->
			pending[n] = pending[n] | 1
		:: else
		fi;
		if
		:: (IN(EXCHANGE, sent[n]) && NEW_RELEASED) || IN(FREE_NEW, sent[n]) -> pending[n] = pending[n] | 2
		:: else
		fi;
		late[n] = HEAD(n); sent[n] = 0;
		canonical()
	}
}
inline arrives_late(n) { /* no reply reaches the client: no vote */
	d_step {
		late[n] > 0 ->
		printf("   the server of node %d carries it out late:\n", (n) + 1);
		carried_out(n, late[n], false);
		late[n] = 0;
		canonical()
	}
}
inline lost(n) {
	d_step {
		late[n] > 0 ->
		printf("   it never arrives at node %d\n", (n) + 1);
		late[n] = 0;
		canonical()
	}
}
#define MAY_FREE_OLD(n) ((pending[n] & 1) && key[n] == OLD)
#define MAY_FREE_NEW(n) ((pending[n] & 2) && key[n] == NEW)
inline released(n) {     /* a pending release, over the next connection, and again: it names its token */
	d_step {
		MAY_FREE_OLD(n) || MAY_FREE_NEW(n) ->
		printf("   a pending release on node %d -> deletes the key\n", (n) + 1);
		key[n] = NOTHING;
		canonical()
	}
}
/* --- another process, again and again --- */
inline begin_other() {
	d_step {
		phase[X] == IDLE && !asked[0] && !asked[1] && !asked[N - 1] ->
		phase[X] = ASKING;
		printf("C: begins an attempt, sends SET to all nodes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else -> asked[i] = true; i++
		od;
		i = 0;
		canonical()
	}
}
inline set_other(n) {
	d_step {
		asked[n] ->
		asked[n] = false;
		if
		:: key[n] == NOTHING && phase[X] == ASKING ->
			printf("C: SET on node %d -> granted\n", (n) + 1);
			key[n] = FOREIGN; voted[n] = voted[n] | 4
		:: else
		fi;
		canonical()
	}
}
inline end_other() {
	d_step {
		phase[X] != IDLE ->
		phase[X] = IDLE;
		printf("C: releases on all nodes\n");
		i = 0;
		do
		:: i >= N -> break
		:: else ->
			voted[i] = voted[i] & 3; asked[i] = false;
			if
			:: key[i] == FOREIGN -> key[i] = NOTHING
			:: else
			fi;
			i++
		od;
		i = 0;
		canonical()
	}
}
/* --- nothing stays behind --- */
#define NO_COMMAND(n) (sent[n] == 0 && late[n] == 0 && apart[n] == 0)
#define STAYS(n) ((key[n] == OLD && !(pending[n] & 1)) || (key[n] == NEW && !(pending[n] & 2)))
#define NO_KEY_STAYS(n) (!STAYS(n))
#define B_IS_OVER (phase[B] == OVER || phase[B] == IDLE)
inline stays() {
	d_step {
		phase[A] == OVER && B_IS_OVER && NONE(NO_COMMAND) && !NONE(NO_KEY_STAYS) ->
		printf("  ! a key stays, of a token that no client holds or will release\n");
		assert(false)
	}
}

active proctype world() {
	do
	:: begin()
	:: win(A)
	:: win(B)
	:: win(X)
	:: exchange()
	:: end_late()
	:: finish()
	:: give_up()
	EACH_NODE(carry_out)
#if !FOLLOWS
	EACH_NODE(carry_out_apart)
#endif
	EACH_NODE(broken)
	EACH_NODE(arrives_late)
	EACH_NODE(lost)
	EACH_NODE(released)
	:: begin_other()
	EACH_NODE(set_other)
	:: end_other()
	:: stays()
	od
}

/* What redlock.pml needs to follow a trace. Owns the plan (one step for each line of the trace that
 * the model knows, made by trace.py) and its exact times; leaves all actions and their guards to
 * redlock.pml. A plan is a list of actions, each with who, where, what the node answered and how
 * long; an action is possible only if it is the next one of the plan and its own guard allows it. So
 * the end of the plan can be reached if and only if the trace is a behaviour of the model.
 *
 * One attempt is one client here, in any process, and times are in microseconds of true time: a
 * key lives for its ttl give or take the drift that clocks may have (`slack`), and may go unseen.
 */
c_decl {
\#include "plan.h"
}
#define TOKENS CLIENTS
#define COUNT int
#define SETS(name, many) bool name[(many) * TOKENS]
#define HAS(set, n, i) set[(n) * TOKENS + (i)]
#define ADD(set, n, i) HAS(set, n, i) = true
#define DROP(set, n, i) HAS(set, n, i) = false

/* The next step; `load` reads it from the plan. */
int at;
int what; int who; int where; int answer; int span; int slack;
bool silent;            /* the last action was none of the plan's */
inline load() {
	c_code {
		now.what = plan[now.at].what; now.who = plan[now.at].who;
		now.where = plan[now.at].where; now.answer = plan[now.at].answer;
		now.span = plan[now.at].span; now.slack = plan[now.at].slack;
		if (now.at > furthest) { furthest = now.at; printf("reached %d\n", furthest); }
	}
}
#define SETTLE \
	if \
	:: silent -> silent = false \
	:: else -> at++; load() \
	fi
#define MAY(action, says) (what == action && answer == says)
#define SILENT silent = true

/* A key of this ttl; its window is how early or late it may go, either way. */
COUNT window[N];
#define LIFE (span + slack)
#define WINDOW(n) (2 * window[n])
#define SET_WINDOW(n) window[n] = slack
/* Nobody notices an early end before the next command finds the key gone. */
#define MAY_EXPIRE(n) (what == SET || what == RELEASE || what == STRETCH)

/* Validity: `span` is what the trace says is left, which must be what the model makes of it, but for
 * what the client's clock may be off. At the start of a round it is the whole. */
#define VALIDITY span
#define FITS(has) (span > 0 && has + slack >= span && span + slack >= has)
#define VALID(c) FITS(left[c])
#define FRESH_VALID(c) FITS(fresh[c])
#define LEFT(c) span
#define FRESH_LEFT(c) (span > left[c] -> span : left[c])
#define STEP span
#define WORTH(it) true
#define FORGOTTEN(s) true

#define EACH_CLIENT(action) :: action(who)
#define EACH_ATTEMPT(action) :: action(who, who)
#define EACH_TOKEN(action) :: action(who)
#define EACH_NODE(action) :: action(where)
#define EACH_MESSAGE(action) :: action(where, who)
#define FOLLOW EACH_MESSAGE(released_in_vain) EACH_MESSAGE(extended_in_vain) EACH_MESSAGE(received_in_vain)

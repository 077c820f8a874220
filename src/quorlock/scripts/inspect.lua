-- Who holds the lock, for how long, and how many wait, in one round trip.
-- KEYS[1] lock key
-- returns {token, ttl in ms (-1 does not expire), places in its queue (0: none, or not known)};
--   {false, -2, places} when absent; of a value that is longer than any token, its first 4096 bytes
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
local holder = redis.call('GET', KEYS[1])
local waiters = redis.pcall('ZCARD', 'quorlock:queue:' .. KEYS[1])
waiters = type(waiters) == 'number' and waiters or 0
return { holder and string.sub(holder, 1, 4096), redis.call('PTTL', KEYS[1]), waiters }

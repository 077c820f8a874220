-- Who holds the lock, and for how long, in one round trip.
-- KEYS[1] lock key
-- returns {token, ttl in ms (-1 does not expire)}, {false, -2} when absent; of a value that is
--   longer than any token, its first 4096 bytes
-- errors  WRONGTYPE: the key holds another type of data
local holder = redis.call('GET', KEYS[1])
return { holder and string.sub(holder, 1, 4096), redis.call('PTTL', KEYS[1]) }

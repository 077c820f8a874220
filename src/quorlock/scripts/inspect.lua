-- Who holds the lock, and for how long, in one round trip.
-- KEYS[1] lock key
-- returns {token, ttl in ms (-1 does not expire)}, {false, -2} when absent
-- errors  WRONGTYPE: the key holds another type of data
return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]) }

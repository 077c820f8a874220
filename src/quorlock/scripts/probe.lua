-- Tries what release and extend do, on a key that nobody sets: changes nothing.
-- KEYS[1] a side key of ours
-- returns 1
-- errors  what the other scripts would meet: a right, a command or a setting that is missing
redis.call('PTTL', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], 1)
redis.call('GET', KEYS[1])
return 1

-- Compare-and-delete: frees the lock if it is still ours.
-- KEYS[1] lock key  ARGV[1] token
-- returns -3 it was ours and is deleted, -2 absent,
--         -1 another's that does not expire, n >= 0 another's that expires in n ms
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return -3
end
return redis.call('PTTL', KEYS[1])

-- Compare-and-set: turns a lock that is still ours into the mark of work that is done.
-- KEYS[1] lock key  ARGV[1] token  ARGV[2] mark  ARGV[3] ttl of the mark in ms
-- returns 1 kept (or kept before), 0 held by another, -1 absent
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
local holder = holder_of(KEYS[1])
if not holder then
  return -1
end
-- Kept before, and the reply was lost: the first time counts.
if holder == ARGV[2] then
  return 1
end
if holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1

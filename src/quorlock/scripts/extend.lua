-- Compare-and-expire: lets a lock that is still ours live at least ARGV[2] ms from now.
-- KEYS[1] lock key  ARGV[1] token  ARGV[2] ttl in ms
-- returns 1 extended (or would live longer anyway), 0 held by another, -1 absent
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
local holder = redis.call('GET', KEYS[1])
if not holder then
  return -1
end
if holder ~= ARGV[1] then
  return 0
end
-- Never shorten: a late, shorter extension may arrive over another connection.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  -- Read last: who tracks the keys that it reads is told no more of one that was changed since.
  redis.call('PTTL', KEYS[1])
end
return 1

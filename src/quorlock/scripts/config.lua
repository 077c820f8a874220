-- Compare-and-set of what clients agree on, so that two that write it at once agree in the end.
-- KEYS[1] the key  ARGV[1] what must be there; '' for nothing  ARGV[2] what to write in its place
-- returns what was there; it was replaced if that is ARGV[1]
-- errors  WRONGTYPE: the key holds another type of data
local before = redis.call('GET', KEYS[1]) or ''
if before == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
end
return before

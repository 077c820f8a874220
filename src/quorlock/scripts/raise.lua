-- Issues a fence that another node has issued to the same attempt: once, and never an older one.
-- KEYS[1] lock key  KEYS[2] fence counter, and any further lock keys, whose counters are
--   'quorlock:fence:' .. key: the fence is issued to all of them or to none
-- ARGV[1] token  ARGV[2] fence  ARGV[3] how far it may be ahead of the clock, in ms
-- returns {what, TIME in us, number}:
--   1 issued, and the fence; 0 a lock is another's, and its PTTL; -1 a lock is gone, and 0;
--   -2 a counter is absent, no number or not below it, and 0;
--   -3 it is too far ahead of the clock, and 0
-- errors  WRONGTYPE: a key holds another type of data; nothing is changed then
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local us = time[1] * 1000000 + time[2]
local counters = { KEYS[2] }
for i, key in ipairs(KEYS) do
  if i ~= 2 then
    local holder = holder_of(key)
    if not holder then
      return { -1, us, 0 }
    end
    if holder ~= ARGV[1] then
      return { 0, us, redis.call('PTTL', key) }
    end
    if i > 2 then
      counters[i - 1] = 'quorlock:fence:' .. key
    end
  end
end
local fence = tonumber(ARGV[2])
if fence > (ms + ARGV[3]) * 1000 then
  return { -3, us, 0 }
end
for _, counter in ipairs(counters) do
  local last = redis.call('GET', counter)
  -- Absent: this node has forgotten what it issued. Only acquire.lua begins anew, above all that.
  if not last or not string.find(last, '^%d+$') or tonumber(last) >= fence then
    return { -2, us, 0 }
  end
end
for _, counter in ipairs(counters) do
  redis.call('SET', counter, string.format('%.0f', fence), 'PX', 86400000)
end
return { 1, us, fence }

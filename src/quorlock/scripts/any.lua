-- Acquire any one of several locks: sets the first that is free.
-- KEYS[1] lock key  KEYS[2] marker of the restart guard, and any further lock keys, in the order in
--   which they are tried
-- ARGV[1] token  ARGV[2] ttl in ms
-- ARGV[3] the marker must have been there for so many ms; 0: no marker is wanted
-- returns {what, TIME in us, number, how many lock keys are before the one that this is about}:
--   1 granted, or has the token already, and 0; 0 all are held by others, and the PTTL of the first
--   that expires (-1: none does);
--   {-1, TIME in us, ms left} kept out by the marker
-- errors  WRONGTYPE: a key holds another type of data; nothing is changed then
-- A key that is reserved for a waiter is held: its value is the place of that waiter.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local us = time[1] * 1000000 + time[2]
local out = kept_out(KEYS[2], ARGV[3], ms)
if out then
  return { -1, us, out }
end
local free, ours
local locks = { KEYS[1] }
for i = 3, #KEYS do
  locks[i - 1] = KEYS[i]
end
for i, key in ipairs(locks) do
  local value = holder_of(key)
  if value == ARGV[1] then
    ours = ours or i
  elseif not value then
    free = free or i
  end
end
if ours then
  return { 1, us, 0, ours - 1 }
end
if free then
  redis.call('SET', locks[free], ARGV[1], 'PX', ARGV[2])
  return { 1, us, 0, free - 1 }
end
local first, left = 1, -1
for i, key in ipairs(locks) do
  local ttl = redis.call('PTTL', key)
  if ttl >= 0 and (left < 0 or ttl < left) then
    first, left = i, ttl
  end
end
return { 0, us, left, first - 1 }

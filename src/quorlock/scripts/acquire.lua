-- Acquire where a plain SET tells too little: sets the lock if nobody holds it, and issues a fence.
-- KEYS[1] lock key  KEYS[2] fence counter  KEYS[3] marker of the restart guard, and any further
--   lock keys, whose counters are 'quorlock:fence:' .. key: all of them are set or none is
-- ARGV[1] token  ARGV[2] ttl in ms
-- ARGV[3] fences are at least the next multiple of so many ms of the clock; 0: none is wanted
-- ARGV[4] the marker must have been there for so many ms; 0: no marker is wanted
-- ARGV[5] our place in the queue of KEYS[1], ARGV[6] a token there to replace, '' for none; or neither
--   argument. The place is removed; a key that is reserved for it, or has that token, is granted
-- returns {what, TIME in us, number}:
--   1 granted, and the fence (0: none was wanted); 0 held by another, and its PTTL (of several keys
--   the first that is, and also how many of them are before it);
--   -1 kept out by the marker, and the ms left;
--   -2 a counter is no number or more than a day ahead of the clock, and 0
-- with ARGV[5] a grant is {1, TIME, fence, 1 if others wait, 1 if the key had that token}, or without
--   a fence -3, one less if others wait, and two less if the key had that token
-- errors  WRONGTYPE: a key holds another type of data; nothing is changed then
local place, instead = ARGV[5], ARGV[6]
local queue, next = 'quorlock:queue:' .. KEYS[1], 'quorlock:next:'
if place and not KEYS[4] and ARGV[3] .. ARGV[4] == '00' then
  -- As nearly always of a waiter: the key is reserved for our place, or has the token to replace.
  local holder = redis.pcall('GET', KEYS[1])
  local replaces = holder == instead and instead ~= '' and instead ~= ARGV[1]
  if replaces or place ~= '' and holder == next .. place then
    if place ~= '' then
      redis.pcall('ZREM', queue, place)
    end
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
    local waiters = redis.pcall('ZCARD', queue)
    return -3 - (tonumber(waiters) and waiters > 0 and 1 or 0) - (replaces and 2 or 0)
  end
end
if place and place ~= '' then
  redis.pcall('ZREM', queue, place)
end
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end
local ms, us
if not place or ARGV[3] .. ARGV[4] ~= '00' then
  ms, us = clock()
  local out = kept_out(KEYS[3], ARGV[4], ms)
  if out then
    return { -1, us, out }
  end
end
local holder = holder_of(KEYS[1])
local replaces = place and holder and holder ~= '' and holder == instead
local reserved = place and place ~= '' and holder == next .. place
local locks, counters, missing = { KEYS[1] }, { KEYS[2] }, {}
for i, key in ipairs(KEYS) do
  if i > 3 then
    locks[i - 2], counters[i - 2] = key, 'quorlock:fence:' .. key
  end
end
for i, key in ipairs(locks) do
  local value = holder
  if i > 1 then
    value = holder_of(key)
  end
  if value ~= ARGV[1] then
    if value and not (i == 1 and (replaces or reserved)) then
      return { 0, us or select(2, clock()), redis.call('PTTL', key), locks[2] and i - 1 }
    end
    table.insert(missing, key)
  end
end
local fence = 0
if ARGV[3] ~= '0' then
  -- At least the clock: a counter may be lost, or an old one be back from the disk.
  fence = (math.floor(ms / ARGV[3]) + 1) * ARGV[3] * 1000
  for _, counter in ipairs(counters) do
    local last = redis.call('GET', counter) or '0'
    if not string.find(last, '^%d+$') or tonumber(last) > (ms + 86400000) * 1000 then
      return { -2, us, 0 }
    end
    fence = math.max(last + 1, fence)
  end
end
for _, key in ipairs(missing) do
  redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
if fence > 0 then
  for _, counter in ipairs(counters) do
    -- Forgotten after a day without use. No tostring: it loses digits beyond the 14th.
    redis.call('SET', counter, string.format('%.0f', fence), 'PX', 86400000)
  end
end
if not place then
  return { 1, us, fence }
end
local waiters = redis.pcall('ZCARD', queue)
local others_wait = type(waiters) == 'number' and waiters > 0 and 1 or 0
local replaced = replaces and 1 or 0
if fence == 0 then
  return -3 - others_wait - 2 * replaced
end
return { 1, us, fence, others_wait, replaced }

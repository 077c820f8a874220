-- Acquire shared: joins the readers of the lock, unless it is held alone, or a waiter wants it so.
-- KEYS[1] lock key: a token that holds it alone, or the readers: a sorted set of their tokens by
--   their ends, in ms of this node's clock; the key lives as long as the last of them
-- KEYS[2] marker of the restart guard
-- ARGV[1] token  ARGV[2] ttl in ms
-- ARGV[3] the marker must have been there for so many ms; 0: no marker is wanted
-- ARGV[4] our place in the queue of KEYS[1], or no argument: a reader's ends in ':shared'. It is
--   removed
-- returns {what, TIME in us, number}:
--   1 granted, or is a reader already, and 0; 0 held by another, or kept for one that waits, and PTTL
--   of the key; -1 kept out by the marker, and the ms left
-- errors  WRONGTYPE: the key holds another type of data; nothing is changed then
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local us = time[1] * 1000000 + time[2]
local place, queue = ARGV[4], 'quorlock:queue:' .. KEYS[1]
local is_next = place and string.find(redis.pcall('ZRANGE', queue, 0, 0)[1] or '', ':shared$')
if place then
  redis.pcall('ZREM', queue, place)
end
local out = kept_out(KEYS[2], ARGV[3], ms)
if out then
  return { -1, us, out }
end
if type(redis.pcall('GET', KEYS[1])) == 'string' then
  return { 0, us, redis.call('PTTL', KEYS[1]) }
end
local ends = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or -1)
local left = redis.call('PTTL', KEYS[1])
if left == -1 then
  -- The data of another program: a sorted set without a ttl.
  return { 0, us, left }
end
local reservation = place and 'quorlock:next:' .. place
local is_called = place and redis.call('ZSCORE', KEYS[1], reservation)
local kept = false
while ends < ms and not (is_called or is_next or kept) do
  local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
  if not first or string.find(first, ':shared$') then
    break
  end
  -- It waits to hold the lock alone, if its process is there: an empty message shows that.
  local inbox = string.match(first, '^(%x+):%d+:%d+$')
  kept = inbox and redis.pcall('PUBLISH', 'quorlock:inbox:' .. inbox, '') ~= 0
    or redis.pcall('ZREM', queue, first) ~= 1
end
if kept then
  return { 0, us, math.max(left, 0) }
end
if ends < ms + ARGV[2] then
  redis.call('ZADD', KEYS[1], ms + ARGV[2], ARGV[1])
end
if place then
  redis.call('ZREM', KEYS[1], reservation)
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', ms))
if left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return { 1, us, 0 }

-- Who holds the lock, for how long, and how many wait, in one round trip.
-- KEYS[1] lock key
-- returns {token, ttl in ms (-1 does not expire), places in its queue (0: none, or not known)};
--   {false, -2, places} when absent; of a value that is longer than any token, its first 4096 bytes
--   of readers that have not ended {false, ttl in ms, places, token, ms left, token, ms left ...}, the 100 that end last
-- errors  WRONGTYPE: the key holds another type of data; it is left alone
local waiters = redis.pcall('ZCARD', 'quorlock:queue:' .. KEYS[1])
waiters = type(waiters) == 'number' and waiters or 0
local holder = redis.pcall('GET', KEYS[1])
if type(holder) ~= 'table' then
  return { holder and string.sub(holder, 1, 4096), redis.call('PTTL', KEYS[1]), waiters }
end
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local readers = redis.call('ZRANGE', KEYS[1], -100, -1, 'WITHSCORES')
local found = { false, redis.call('PTTL', KEYS[1]), waiters }
for i = #readers - 1, 1, -2 do
  local left = tonumber(readers[i + 1]) - ms
  if left >= 0 then
    table.insert(found, string.sub(readers[i], 1, 4096))
    table.insert(found, left)
  end
end
if not found[4] then
  redis.call('GET', KEYS[1])
end
return found
